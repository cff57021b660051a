"""Files with mutations: readers and their first users give a result or a `UserError`.

Bytes are changed, lost, doubled or moved, lines too: 10,000 cases of all kinds together
in the slow set, their first 300 without it.
"""

import gzip
import json
import shutil
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from reference.decode_paths import random_graph
from reference.determinize_naive import tangled_lattice
from reference.kaldi_nnet3 import HandWritten, xconfig_lines
from reference.small_model import small_model

from latflow.corpus.ctm import read_ctm
from latflow.corpus.manifests import read_cuts
from latflow.decode.decoder import LatticeDecoder
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.fst.graph import Graph
from latflow.gmm.model import AcousticModel, DiagGmms, load_transform
from latflow.graphs.hclg import load_model as load_transitions
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import (
    KaldiWriter,
    read_int_vectors,
    read_matrices,
    write_int_vectors,
    write_matrices,
)
from latflow.lang.arpa import perplexity, read_arpa
from latflow.lang.directory import read_symbols
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import (
    read_compact_lattices,
    read_lattices,
    write_lattices,
)
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.prune import prune
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork, load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.nnet3 import Nnet3
from latflow.nnet.nnet3_import import import_nnet3
from latflow.scoring.transcripts import read_references, read_text
from latflow.scoring.tune import read_scales
from latflow.serving.package import read_info
from latflow.serving.vosk_import import read_model as read_nnet3_model
from latflow.training.checkpoint import CheckpointStore, Position
from latflow.training.hdf5 import export_hdf, import_hdf
from latflow.training.labels import LabelStore, LabelWriter

TID_TO_PDF = np.array([0, 0, 1, 1, 2], np.int32)
LOG_LIKES = np.random.default_rng(7).normal(size=(6, 3)).astype(np.float32)
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


def mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with one to three mutations."""
    data = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        size = len(data)
        at, end = sorted(int(i) for i in rng.integers(0, size + 1, 2))
        short = min(end, at + 8)
        kind = rng.integers(8)
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
            special = rng.choice([b"-1", b"nan", b"inf", b"99999999999", b" ", b"\n"])
            data[at : at + len(special)] = bytes(special)
        elif kind == 6 and size > 4:  # an integer that is far too large, or negative
            number = int(rng.choice([-1, 0, 2**31 - 1, -(2**31), 1000]))
            data[at : at + 4] = number.to_bytes(4, "little", signed=True)
        else:
            lines = bytes(data).split(b"\n")
            one, other = (int(i) for i in rng.integers(0, len(lines), 2))
            lines[one], lines[other] = lines[other], lines[one]
            data = bytearray(b"\n".join(lines))
    return bytes(data)


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


def has_path(lattice):
    """Return whether a path leads to a final state."""
    try:
        forward_backward(lattice)
    except UserError:
        return False
    return True


def write_lattice_archive(path, rng, *, binary, compact):
    tangled = (tangled_lattice(rng, 3) for _ in range(100))
    lattices = list(islice((x for x in tangled if has_path(x)), 2))
    items = [
        (f"u{i}", lattice.to_compact() if compact else lattice)
        for i, lattice in enumerate(lattices)
    ]
    write_lattices(path, items, binary=binary)


def use_lattices(path, read):
    for _, lattice in read(path):
        best_paths(lattice, [Scales.from_lmwt(7, 0.0), Scales.from_lmwt(9, 1.0)])
        forward_backward(lattice, acoustic_scale=0.1)
        determinize(prune(lattice, 8.0, acoustic_scale=0.1), beam=6.0)


def use_graph(path):
    decoder = LatticeDecoder(Graph.load(path), TID_TO_PDF, beam=8.0)
    decoder.decode(LOG_LIKES, acoustic_scale=1.0, utterance="u")


def write_gmm(folder, rng):
    topology = Topology.standard([2, 3], [1], 2, 1)
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    n = tree.num_pdfs
    gmms = DiagGmms.from_moments(
        np.arange(n + 1), np.ones(n), rng.normal(size=(n, 2)), np.full((n, 2), 3.0)
    )
    AcousticModel(small_model(), gmms).save(folder / "final.mdl")
    tree.save(folder / "tree")


def use_gmm(folder):
    model = AcousticModel.load(folder / "final.mdl")
    load_transitions(folder)
    model.gmms.log_likelihoods(np.zeros((3, model.gmms.dim), np.float32))


def write_network(folder, rng):
    layers = {
        "hidden": {"class": "linear", "size": 4, "activation": "relu"},
        "rec": {"class": "rec", "size": 3},
        "output": {"class": "output"},
    }
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, 3, {"pdf": 4}, seed=3)
    save_model(folder / "m", network, description, np.ones(4), {"criterion": "ce"})


def use_network(folder):
    model = load_model(folder / "m")
    with torch.inference_mode():
        model.network(torch.zeros(1, 5, model.network.dim_in), torch.tensor([5]))


def write_nnet3(path, rng):
    layers = {
        "near": {"class": "tdnnf", "size": 3, "bottleneck": 2, "stride": 3},
        "past": {"class": "tdnn", "size": 4, "offsets": [-1, 0]},
        "norm": {"class": "batch_norm"},
        "both": {"class": "concat", "from": ["past", "norm"]},
        "output": {"class": "output", "loss": "lfmmi"},
    }
    description = NetworkDescription.from_config({"edges": "repeat", "layers": layers})
    network = Network(description, 3, {"pdf": 4}, seed=3).eval()
    meta = {"scores": "log_likelihoods", "normalization": {"type": "none"}}
    with KaldiWriter.open(path) as writer:
        small_model().write(writer)
        Nnet3(AcousticNetwork(network, None, meta)).write(writer)


def write_xconfig(path, rng):
    with KaldiWriter.open(path) as writer:
        small_model().write(writer)
        writer.write_bytes(HandWritten(*xconfig_lines(dim=3)).raw())


def use_nnet3(path):
    network = import_nnet3(read_nnet3_model(path)[1], 3).network
    with torch.inference_mode():
        network(torch.zeros(1, 5, network.dim_in), torch.tensor([5]))


def write_checkpoint(folder, rng):
    store = CheckpointStore(folder, {"seed": 1})
    state = {"weights": torch.zeros(3), "step": 4}
    store.save(Position(1, 0), state, ())


def use_checkpoint(folder):
    store = CheckpointStore(folder, {"seed": 1})
    for position in store.positions():
        store.load(position)


def write_frames(folder, rng):
    with FrameWriter(folder / "frames", dim=2) as writer:
        for i in range(3):
            frames = rng.normal(size=(4, 2)).astype(np.float32)
            writer.append(f"u{i}", "s", "ONE", frames)


def use_frames(folder):
    store = FrameStore.load(folder / "frames")
    names = (store.utt_ids, store.speakers, store.texts)
    assert all(len(column) == len(store) for column in names)
    for i in range(len(store)):
        float(store.frames(i).sum())
    store.frame_shift, store.num_frames  # noqa: B018


def write_hdf(path, rng):
    folder = path.parent / "of_hdf"
    write_frames(folder, rng)
    with LabelWriter(folder / "labels", 3) as writer:
        for i in range(3):
            writer.append(f"u{i}", np.array([0, 1, 2, 1], np.int32))
    export_hdf(folder / "frames", {"pdf": folder / "labels"}, path)
    shutil.rmtree(folder)


def use_hdf(path):
    out = path.parent
    import_hdf([path], out / "frames", out / "labels")
    FrameStore.load(out / "frames")
    for labels in (out / "labels").glob("*"):  # none where no target is left
        LabelStore.load(labels)


def use_all(read):
    return lambda path: list(read(path))


def lattice_kind(*, binary, compact):
    read = read_compact_lattices if compact else read_lattices
    return (
        "a.ark",
        lambda path, rng: write_lattice_archive(
            path, rng, binary=binary, compact=compact
        ),
        lambda path: use_lattices(path, read),
    )


def write_matrix_archive(path, rng):
    write_matrices(path, [(f"u{i}", rng.normal(size=(3, 2))) for i in range(2)])


def write_vector_archive(path, rng):
    write_int_vectors(path, [(f"u{i}", rng.integers(0, 9, 5)) for i in range(2)])


def write_graph(path, rng, form):
    random_graph(rng, 6, has_cycles=False).save(path, **form)


def use_arpa(path):
    perplexity(read_arpa(path), [["one", "two"], ["one"]])


def use_scales(path):
    chosen = read_scales(path)
    Scales.from_lmwt(chosen["lmwt"], chosen["wip"])


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "graph": ("HCLG.fst", lambda p, rng: write_graph(p, rng, {}), use_graph),
    "raw lattices, binary": lattice_kind(binary=True, compact=False),
    "raw lattices, text": lattice_kind(binary=False, compact=False),
    "compact lattices, binary": lattice_kind(binary=True, compact=True),
    "compact lattices, text": lattice_kind(binary=False, compact=True),
    "matrices": ("a.ark", write_matrix_archive, use_all(read_matrices)),
    "integer vectors": ("a.ark", write_vector_archive, use_all(read_int_vectors)),
    "GMM and tree": ("", write_gmm, use_gmm),
    "ARPA": ("lm.arpa", lambda p, _: p.write_text(ARPA), use_arpa),
    "symbols": (
        "words.txt",
        lambda p, _: p.write_text("<eps> 0\nONE 1\nTWO 2\n"),
        read_symbols,
    ),
    "texts": (
        "text",
        lambda p, _: p.write_text("u0 ONE TWO\nu1 TWO\n"),
        read_text,
    ),
    "times": (
        "hyp.ctm",
        lambda p, _: p.write_text("u0 1 0.1 0.2 ONE 0.9\nu0 1 0.3 0.2 TWO\n"),
        use_all(read_ctm),
    ),
    "scales": (
        "scales.json",
        lambda p, _: p.write_text('{"lmwt": 9, "wip": 0.5, "wer": 3.0}\n'),
        use_scales,
    ),
    "transform": (
        "transform.json",
        lambda p, _: p.write_text(
            '{"type": "chain", "transforms": [{"type": "splice", "left": 1, '
            '"right": 1}, {"type": "deltas", "order": 2, "window": 2}]}'
        ),
        lambda path: load_transform(path.parent),
    ),
    "package": (
        "package.json",
        lambda p, _: p.write_text('{"format": 1, "name": "tri3", "kind": "gmm"}\n'),
        lambda path: read_info(path.parent),
    ),
    "references": ("cuts.jsonl.gz", write_cuts, read_references),
    "plain references": ("cuts.jsonl", write_cuts, read_references),
    "cuts": ("cuts.jsonl.gz", write_cuts, use_all(read_cuts)),
    "plain cuts": ("cuts.jsonl", write_cuts, use_all(read_cuts)),
    "network": ("", write_network, use_network),
    "nnet3": ("final.mdl", write_nnet3, use_nnet3),
    "nnet3 of Kaldi's components": ("final.mdl", write_xconfig, use_nnet3),
    "checkpoint": ("", write_checkpoint, use_checkpoint),
    "frames": ("", write_frames, use_frames),
    "HDF5": ("a.hdf", write_hdf, use_hdf),
}


def check(kind, folder, cases):
    """Mutate a file of a kind, again and again; anything but a UserError fails."""
    name, write, use = KINDS[kind]
    rng = np.random.default_rng([2, *kind.encode()])
    source = folder / "source"
    source.mkdir()
    write(source / name if name else source, rng)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    for case in range(cases):
        copy = folder / f"case{case}"
        shutil.copytree(source, copy)
        path = files[case % len(files)]
        raw = mutated(path.read_bytes(), rng)
        (copy / path.relative_to(source)).write_bytes(raw)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(copy / name if name else copy)
        except UserError:
            pass
        except Exception as error:
            note = f"case {case} of {kind}: {path.name} = {raw!r}"
            error.add_note(note[:3000])
            raise
        shutil.rmtree(copy)


@pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(kind, tmp_path, -(-cases // len(KINDS)))
