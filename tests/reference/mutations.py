"""Mutations of files: readers and their first users give a result or a `UserError`.

Bytes are changed, lost, doubled or moved, lines too; every second time, values and
arrays of a file that stays whole are of other kinds and sizes (`structures`). Each
file of tests has a table of kinds: name of file or folder, how it is written, how it is
used. What several of them write is here as well.
"""

import gzip
import json
import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from reference.made_up_alignments import make_system
from reference.structures import restructured

from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.features.options import OnlineCmvn
from latflow.features.transform import Deltas
from latflow.gmm.ivector import Extractor, FrameProjection, IvectorModel
from latflow.gmm.model import AcousticModel, DiagGmms, save_transform
from latflow.gmm.options import IvectorOptions
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import GraphOptions
from latflow.hmm.tree import ContextDependency
from latflow.lang.prepare import make_grammar
from latflow.ledger import Ledger
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import save_model
from latflow.nnet.network import Network

#: What is put in the place of numbers of text.
SPECIAL = (
    *(b"-1", b"0", b"nan", b"inf", b"99999999999", b"1e999", b"NaN", b"Infinity"),
    *(b"null", b"{}", b'""', b"1" * 5000, b"[" * 5000, b" ", b"\n"),
)


def mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with one to three mutations."""
    data = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        size = len(data)
        at, end = sorted(int(i) for i in rng.integers(0, size + 1, 2))
        short = min(end, at + 8)
        kind = rng.integers(9)
        if kind == 0 and size:
            data[at % size] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at:short] = rng.integers(0, 256, short - at, dtype=np.uint8).tobytes()
        elif kind == 2:
            del data[at:short]
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            data[at:at] = data[at:short]
        elif kind == 5:
            special = SPECIAL[rng.integers(len(SPECIAL))]
            data[at : at + len(special)] = special
        elif kind == 6 and size > 4:  # an integer that is far too large, or negative
            number = int(rng.choice([-1, 0, 2**31 - 1, -(2**31), 1000]))
            data[at : at + 4] = number.to_bytes(4, "little", signed=True)
        elif kind == 7 and (numbers := [*re.finditer(rb"-?\d+(\.\d+)?", data)]):
            begin, finish = numbers[rng.integers(len(numbers))].span()
            data[begin:finish] = SPECIAL[rng.integers(len(SPECIAL))]
        else:
            lines = bytes(data).split(b"\n")
            one, other = (int(i) for i in rng.integers(0, len(lines), 2))
            lines[one], lines[other] = lines[other], lines[one]
            data = bytearray(b"\n".join(lines))
    return bytes(data)


#: How many cases of each kind, and how many in the slow set: some 300 and 10,000 of the
#: 121 kinds of all files of tests together. The seed of a kind is its name: its cases
#: depend on no other kind, and the first of the slow set are those of the quick one.
CASES, SLOW_CASES = 3, 85


def of_each(kinds):
    """Parametrize a test by kinds of files and by the number of cases of each."""
    slow = pytest.param(SLOW_CASES, marks=pytest.mark.slow)
    by_kind = pytest.mark.parametrize("kind", kinds)
    by_cases = pytest.mark.parametrize("cases", [CASES, slow])
    return lambda test: by_cases(by_kind(test))


def check(kinds, kind, folder, cases):
    """Mutate a file of a kind, again and again; anything but a UserError fails."""
    name, write, use = kinds[kind]
    rng = np.random.default_rng([2, *kind.encode()])
    source = folder / "source"
    source.mkdir()
    write(source / name if name else source, rng)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    shutil.copytree(source, folder / "whole")
    use(folder / "whole" / name if name else folder / "whole")
    for case in range(cases):
        copy = folder / f"case{case}"
        shutil.copytree(source, copy)
        path = files[case // 2 % len(files)]
        raw = path.read_bytes()
        raw = (case % 2 and restructured(path, raw, rng)) or mutated(raw, rng)
        (copy / path.relative_to(source)).write_bytes(raw)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(copy / name if name else copy)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017 - where there is one
        except Exception as error:
            note = f"case {case} of {kind}: {path.name} = {raw!r}"
            error.add_note(note[:3000])
            raise
        shutil.rmtree(copy)


ARPA = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0 <s> -0.5
-0.7 </s>
-0.9 one -0.2
-0.8 two -0.3

\\2-grams:
-0.3 <s> one
-0.4 one </s>

\\end\\
"""


def cuts(rng):
    """Return the lines of a manifest of cuts."""
    for i in range(3):
        name = f"u{i}"
        recording = {
            "id": name, "sources": [{"type": "file", "channels": [0], "source": "a"}],
            "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0,
        }  # fmt: skip
        supervision = {
            "id": name, "recording_id": name, "start": 0.0, "duration": 1.0,
            "channel": 0, "text": "ONE TWO", "speaker": "s",
        }  # fmt: skip
        features = {
            "type": "kaldi", "num_frames": 98, "num_features": 13, "frame_shift": 0.01,
            "sampling_rate": 8000, "start": 0, "duration": 1.0,
            "storage_type": "numpy_files", "storage_path": "x", "storage_key": "y",
        }  # fmt: skip
        yield {
            "id": name, "start": 0.0, "duration": 1.0, "channel": 0,
            "supervisions": [supervision], "features": features,
            "recording": recording, "type": "MonoCut",
        }  # fmt: skip


def write_cuts(path, rng):
    text = "".join(json.dumps(cut) + "\n" for cut in cuts(rng))
    raw = text.encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def use_all(read):
    return lambda path: list(read(path))


LEXICON = "<UNK> SPN\nONE W AH N\nTWO T UW\nTWO T AX\n"


def write_wave(path, rng, num_channels=1):
    samples = rng.uniform(-0.5, 0.5, (4000, num_channels))
    soundfile.write(path, samples, 8000)


def write_ledger(path, rng):
    ledger = Ledger("align_frames")
    ledger.record("u0", "no path", action="skipped")
    ledger.record("u1", "beam widened", action="retried", beam=40.0)
    ledger.write(path)


def write_spoken(folder):
    """Write a language, a model of its phones, and frames of three utterances."""
    _, lang, model = make_system(folder)
    counts = lang.topology.pdf_class_counts()
    tree = ContextDependency.monophone([[p] for p in sorted(counts)], counts)
    tree.save(folder / "tree")
    with FrameWriter(folder / "frames", dim=2) as writer:
        for i, text in enumerate(("EIGHT TWO", "TWO", "THREE")):
            writer.append(f"u{i}", "s", text, np.zeros((60, 2), np.float32))
    return lang, tree, model


def ivector_model(rng, dim=2, **changes):
    """An extractor of i-vectors of two numbers, that no speech was heard by."""
    ubm = DiagGmms.from_moments(
        np.array([0, 2]), np.ones(2) / 2, rng.normal(size=(2, dim)), np.ones((2, dim))
    )
    extractor = Extractor(
        rng.normal(size=(2, dim, 2)), np.stack([np.eye(dim)] * 2), 5.0
    )
    options = IvectorOptions(features="x", dim=2, num_gaussians=2)
    projection = FrameProjection(0, np.zeros(dim), np.eye(dim))
    stats = np.array([[*range(1, dim + 1), 3.0], [*range(200, dim + 200), 0.0]])
    model = IvectorModel(projection, ubm, extractor, options, OnlineCmvn(), stats)
    return replace(model, **changes)


#: A network without layers of its own.
ONE_LAYER = {"output": {"class": "output", "loss": "lfmmi"}}


def write_system(folder, rng, *, kind, layers=ONE_LAYER, dim=13):
    """Write a system that knows no speech, its language, graph and scales."""
    _, lang, model = make_system(folder)
    shutil.move(folder / "final.mdl", folder / "transitions.mdl")
    counts = lang.topology.pdf_class_counts()
    tree = ContextDependency.monophone([[p] for p in sorted(counts)], counts)
    (folder / "model").mkdir()
    n = tree.num_pdfs
    if kind == "gmm":
        means = rng.normal(size=(n, 39))
        moments = np.ones(n), means, np.full((n, 39), 3.0)
        gmms = DiagGmms.from_moments(np.arange(n + 1), *moments)
        AcousticModel(model, gmms).save(folder / "model/final.mdl")
        save_transform(folder / "model", Deltas())
    else:
        config = {"edges": "repeat", "layers": layers}
        description = NetworkDescription.from_config(config)
        network = Network(description, dim, {"pdf": n}, seed=3).eval()
        meta = {"scores": "log_likelihoods", "normalization": {"type": "none"}}
        save_model(folder / "model", network, description, None, meta)
        model.save(folder / "model/final.mdl")
    tree.save(folder / "model/tree")
    arpa = folder / "lm.arpa"
    arpa.write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))
    make_grammar(arpa, folder / "lang", folder / "G.fst")
    graph = GraphOptions()
    make_graph(
        folder / "lang", folder / "G.fst", folder / "model", folder / "HCLG.fst",
        options=graph,
    )  # fmt: skip
    (folder / "scales.json").write_text('{"lmwt": 9, "wip": 0.5}')
    for name in ("transitions.mdl", "lexicon.txt", "lm.arpa", "G.fst"):
        (folder / name).unlink()
    return lang, model
