"""Mutated packages, what they are made of, and requests."""

import json
from contextlib import suppress
from pathlib import Path

import kaldifst
import numpy as np
import soundfile
from fixtures.mfa_model import old_model, old_phones, write_phones, zipped
from fixtures.mutations import (
    ONE_LAYER,
    check,
    ivector_model,
    of_each,
    write_system,
    write_wave,
)
from fixtures.openfst_files import write_files
from fixtures.serving_package import words_of

from latflow.decode.composed_graph import GraphParts
from latflow.decode.decoder import LatticeDecoder
from latflow.decode.options import TranscribeOptions
from latflow.decode.vosk import VoskFiles, export_vosk
from latflow.errors import UserError
from latflow.features.options import FrontEndOptions
from latflow.files import file_digest
from latflow.kaldi.io import write_matrix
from latflow.lang.completion import load_g2p
from latflow.serving.evaluation import _read_arrays
from latflow.serving.load_test import read_audio
from latflow.serving.mfa_import import import_mfa
from latflow.serving.package import Model
from latflow.serving.package_info import read_info
from latflow.serving.packaging import PackageFiles, PackageOptions, write_package
from latflow.serving.recording import find_recordings
from latflow.serving.service import RefusedError
from latflow.serving.transcribe import transcribe
from latflow.serving.vosk_folder import (
    find_folder,
    in_one_numbering,
    read_conf,
    read_graph_parts,
)
from latflow.serving.vosk_import import import_vosk
from latflow.serving.websocket import read_message


def write_conf(folder, rng):
    (folder / "mfcc.conf").write_text("--sample-frequency=8000\n--num-mel-bins=23\n")
    (folder / "model.conf").write_text(
        "--beam=13.0\n--max-active=7000\n--acoustic-scale=1.0\n"
        "--frame-subsampling-factor=3\n--endpoint.silence-phones=1:2\n"
        "--endpoint.rule2.min-trailing-silence=0.5\n"
    )


PACKAGE = {
    "experiment": "made_up", "name": "tri3", "kind": "gmm",
    "front_end": {"type": "mfcc"}, "format": 1, "sample_rate": 8000,
    "frame_shift": 0.01, "subsampling": 1,
    "acoustic_scale": 0.1, "lattice_scale": 1.0, "prior_scale": 1.0, "lmwt": 9.0,
    "wip": 0.5, "silence_phones": [1], "is_streaming": True, "why_not_streaming": None,
    "licence": "", "versions": {"numpy": "2"}, "digests": {"model/final.mdl": "0a"},
}  # fmt: skip


def use_arrays(path):
    with suppress(RefusedError):  # what the server answers with
        _read_arrays(path.read_bytes(), limit=10**6)


def package(folder, out, *, kind):
    """Write the package of a system."""
    options = PackageOptions(
        experiment="e", name="s", kind=kind, front_end=FrontEndOptions(),
        sample_rate=8000,
    )  # fmt: skip
    write_package(
        PackageFiles(
            model_dir=folder / "model",
            graph=folder / "HCLG.fst",
            lang_dir=folder / "lang",
            scales=folder / "scales.json",
        ),
        out_dir=out,
        options=options,
    )


def use_system(folder, *, kind):
    package(folder, folder / "package", kind=kind)
    use_package(folder / "package")


def write_whole_package(folder, rng, *, kind="gmm"):
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind=kind)
    package(given, folder / "package", kind=kind)


def use_package(folder):
    samples = np.random.default_rng(1).normal(size=2400).astype(np.float32)
    words_of(Model.load(folder), samples)


def use_repackaged(folder):
    """Use a package with the digests of its files as they are."""
    info = folder / "package/package.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        told = json.loads(info.read_text())
        told["digests"] = {
            name: file_digest(folder / "package" / name) for name in told["digests"]
        }
        info.write_text(json.dumps(told))
    use_package(folder / "package")


def write_vosk(folder, rng):
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind="lfmmi")
    export_vosk(
        VoskFiles(
            model_dir=given / "model", lang_dir=given / "lang", graph=given / "HCLG.fst"
        ),
        out_dir=folder / "vosk",
        features=FrontEndOptions(),
        sample_rate=8000,
    )


#: A score for three frames, as Vosk takes i-vectors to be of.
SUBSAMPLED = {
    "first": {"class": "linear", "size": 4},
    "near": {
        "class": "tdnnf", "size": 4, "bottleneck": 2, "time_stride": 1, "stride": 3,
    },
}  # fmt: skip


def write_vosk_with_ivectors(folder, rng):
    """Write a folder whose network takes i-vectors, too."""
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind="lfmmi", layers=SUBSAMPLED | ONE_LAYER, dim=15)
    ivector_model(rng, 13).save(given / "extractor.npz")
    export_vosk(
        VoskFiles(
            model_dir=given / "model",
            lang_dir=given / "lang",
            graph=given / "HCLG.fst",
            ivectors=given / "extractor.npz",
        ),
        out_dir=folder / "vosk",
        features=FrontEndOptions(),
        sample_rate=8000,
    )
    (folder / "vosk/ivector/ivector_extractor.conf").write_text(
        "--num-gselect=5\n--min-post=0.025\n--posterior-scale=0.1\n"
        "--max-remembered-frames=1000\n--max-count=100\n--ivector-period=10\n"
    )


def write_vosk_with_cmvn(folder, rng):
    """Write a folder whose features are normalized online, with all that Kaldi adds."""
    write_vosk(folder, rng)
    stats = np.array([[*range(1, 14), 3.0], [*range(200, 213), 0.0]])
    write_matrix(folder / "vosk/am/global_cmvn.stats", stats)
    write_conf(folder / "vosk/conf", rng)


def use_vosk(folder):
    import_vosk(folder / "vosk", folder / "out", "vosk")
    use_package(folder / "out/package/vosk")


def write_parts(folder, rng):
    """Write a graph in two parts, of OpenFst's programs, as Vosk's folders have it."""
    graph = folder / "graph"
    graph.mkdir()
    write_files(graph)
    (graph / "HCL.fst").rename(graph / "HCLr.fst")
    (graph / ("G.fst" if rng.random() < 0.5 else "A.fst")).rename(graph / "Gr.fst")
    (graph / "disambig_tid.int").write_text("201\n202\n203\n204\n")
    words = ["<eps> 0", *(f"w{n} {n}" for n in range(1, 8)), "#0 8"]
    (graph / "words.txt").write_text("\n".join(words) + "\n")
    for name in ("G.fst", "A.fst", "HCLG.fst"):
        (graph / name).unlink(missing_ok=True)


def use_parts(folder):
    hcl, grammar = in_one_numbering(read_graph_parts(find_folder(folder)))
    graph = GraphParts.of(hcl, grammar, folder)
    decoder = LatticeDecoder(graph, np.minimum(np.arange(300), 9))
    decoder.decode(np.zeros((3, 10), np.float32), acoustic_scale=1.0)


def use_messages(path):
    """What a client says, and what a server of criteria answers."""
    raw = path.read_bytes()
    with suppress(RefusedError, UnicodeDecodeError):  # of text the socket sees to it
        read_message(raw.decode())


def write_heard(folder, rng):
    """Write recordings to transcribe, and a package beside them."""
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind="gmm")
    package(given, given / "package", kind="gmm")
    write_wave(folder / "a.wav", rng)
    write_wave(folder / "b.flac", rng, 2)
    soundfile.write(folder / "c.ogg", rng.uniform(-0.5, 0.5, 4000), 8000)
    (folder / "phrases").write_text("ONE TWO\n")


def use_heard(folder):
    model = Model.load(folder.parent / "given/package")
    options = TranscribeOptions(segmentation={"type": "endpoint"}, formats=("json",))
    recordings = find_recordings([folder])
    transcribe(model, recordings, options=options, out_dir=folder / "out")
    for each in recordings:
        with suppress(UserError):
            read_audio([each.path], limit=5, sample_rate=16000)


#: Name of file or folder, how it is written, how it is used.
def write_mfa_zip(path, rng):
    folder = path.parent.parent / "files"
    write_phones(old_model(folder, fmllr=True), old_phones())
    zipped(folder, path)


def use_mfa(path):
    import_mfa(path, path.parent / f"{path.name}.package")


def write_mfa_g2p(path, rng):
    folder = path.parent.parent / "files"
    folder.mkdir()
    fst = kaldifst.StdVectorFst()
    fst.start = fst.add_state()
    fst.set_final(0, 0.5)
    for label in (97, 98):
        fst.add_arc(0, kaldifst.StdArc(label, label - 96, 0.5, 0))
    fst.write(str(folder / "model.fst"))
    (folder / "phones.sym").write_text("<eps> 0\na 1\nb 2\n")
    zipped(folder, path)


def use_mfa_g2p(path):
    load_g2p(path).pronounce("abba", 2)


KINDS = {
    "package": (
        "package.json",
        lambda p, _: p.write_text(json.dumps(PACKAGE)),
        lambda path: read_info(path.parent),
    ),
    "arrays of a request": (
        "body.npz",
        lambda p, rng: np.savez(p, features=rng.normal(size=(3, 4))),
        use_arrays,
    ),
    "options of Vosk": (
        "",
        lambda p, rng: ((p / "conf").mkdir(), write_conf(p / "conf", rng)),
        lambda p: read_conf(find_folder(p)),
    ),
    "GMM system to package": (
        "",
        lambda p, rng: write_system(p, rng, kind="gmm"),
        lambda p: use_system(p, kind="gmm"),
    ),
    "network to package": (
        "",
        lambda p, rng: write_system(p, rng, kind="lfmmi"),
        lambda p: use_system(p, kind="lfmmi"),
    ),
    "whole package": ("", write_whole_package, lambda p: use_package(p / "package")),
    "whole package, made of it": ("", write_whole_package, use_repackaged),
    "package of a network, made of it": (
        "",
        lambda p, rng: write_whole_package(p, rng, kind="lfmmi"),
        use_repackaged,
    ),
    "Vosk's folder": ("", write_vosk, use_vosk),
    "Vosk's folder with i-vectors": ("", write_vosk_with_ivectors, use_vosk),
    "Vosk's folder with online CMVN": ("", write_vosk_with_cmvn, use_vosk),
    "Vosk's graph in two parts": ("", write_parts, use_parts),
    "files of MFA's model": ("", lambda p, _: old_model(p), use_mfa),
    "zip file of MFA's model": ("model.zip", write_mfa_zip, use_mfa),
    "zip file of MFA's G2P model": ("model.zip", write_mfa_g2p, use_mfa_g2p),
    "message of a client": (
        "message.json",
        lambda p, _: p.write_text(
            '{"config": {"sample_rate": 8000, "words": 1, "phrase_list": ["one"]}}'
        ),
        use_messages,
    ),
    "recordings to transcribe": ("", write_heard, use_heard),
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
