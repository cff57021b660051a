"""Mutated archives, networks, data and systems of Kaldi."""

import struct
from pathlib import Path

import numpy as np
import torch
from fixtures.made_up_alignments import states
from fixtures.mutations import check, of_each, use_all, write_system, write_wave
from fixtures.small_model import small_model
from reference.kaldi_nnet3 import HandWritten, xconfig_lines

from latflow.align.corpus import AlignmentArchive
from latflow.corpus.kaldi_dir import import_kaldi_dir
from latflow.features.cmvn_options import SpeakerCmvn
from latflow.features.frames import FrameWriter
from latflow.features.options import FeatureOptions
from latflow.gmm.kaldi_dir import (
    check_cmvn,
    job_files,
    merged_transforms,
    read_transform,
)
from latflow.gmm.kaldi_export import export_system
from latflow.gmm.kaldi_import import import_alignments, import_graph, import_system
from latflow.kaldi.io import (
    KaldiWriter,
    read_int_vectors,
    read_matrices,
    write_int_vectors,
    write_matrices,
    write_matrix,
)
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.nnet3 import Nnet3
from latflow.nnet.nnet3_import import import_nnet3
from latflow.options import read_options
from latflow.serving.vosk_import import read_model as read_nnet3_model


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
        writer.write_bytes(HandWritten(*xconfig_lines(dim=3, ivector_dim=2)).raw())


def use_nnet3(path):
    network = import_nnet3(read_nnet3_model(path)[1], 3).network
    with torch.inference_mode():
        network(torch.zeros(1, 5, network.dim_in), torch.tensor([5]))


def write_matrix_archive(path, rng):
    write_matrices(path, [(f"u{i}", rng.normal(size=(3, 2))) for i in range(2)])


def write_vector_archive(path, rng):
    write_int_vectors(path, [(f"u{i}", rng.integers(0, 9, 5)) for i in range(2)])


def write_kaldi_dir(folder, rng):
    for name in ("r0", "r1"):
        write_wave(folder / f"{name}.wav", rng)
    waves = "".join(f"{name} {folder / name}.wav\n" for name in ("r0", "r1"))
    tables = {
        "wav.scp": waves,
        "segments": "a-0 r0 0 0.2\na-1 r0 0.2 0.4\nb-0 r1 0 0.5\n",
        "text": "a-0 ONE\na-1 TWO\nb-0 ONE TWO\n",
        "utt2spk": "a-0 a\na-1 a\nb-0 b\n",
        "spk2gender": "a f\nb m\n",
    }
    for name, text in tables.items():
        (folder / name).write_text(text)


def use_alignments(path):
    archive = AlignmentArchive(path)
    archive.get("u0")
    archive.get("u1")


def write_kaldi_system(folder, rng):
    given = folder.parent / "given"
    given.mkdir()
    lang, model = write_system(given, rng, kind="gmm")
    path = given / "ali.ark"
    write_int_vectors(path, [("u0", states(lang, model, ["EY_B"], (3,)))])
    write_matrices(given / "trans.ark", [("s", np.eye(39, 40))])
    export_system(
        given / "model", given / "lang", folder / "exp", graph=given / "HCLG.fst",
        alignments=path, transforms=given / "trans.ark",
    )  # fmt: skip
    (folder / "exp/cmvn_opts").write_text("--norm-means=true --norm-vars=false\n")
    frames = folder.parent / "frames"
    with FrameWriter(frames, dim=13) as writer:
        writer.append("u0", "s", "ONE", np.zeros((3, 13), np.float32))


def use_kaldi_system(folder):
    given, out = folder.parent / "given", folder / "out"
    lang, exp = folder / "exp/lang", folder / "exp"
    import_system(exp, lang, out / "gmm", features=FeatureOptions())
    import_graph(exp / "graph", out / "gmm", lang, out / "HCLG.fst")
    import_alignments(
        exp, out / "gmm", given / "lang", folder.parent / "frames", out / "ali",
        max_skipped_fraction=1.0,
    )  # fmt: skip


def write_compressed(path, rng):
    """Write a matrix of each compressed kind of Kaldi's, 3 x 2."""
    head = struct.pack("<ffii", -1.0, 2.0, 3, 2)
    sizes = {"CM": 22, "CM2": 12, "CM3": 6}
    path.write_bytes(
        b"".join(
            f"u{i} \0B{kind} ".encode() + head + rng.bytes(size)
            for i, (kind, size) in enumerate(sizes.items())
        )
    )


def write_text_archive(path, rng, *, is_matrix):
    with path.open("wb") as stream:
        for i in range(2):
            stream.write(f"u{i} ".encode())
            writer = KaldiWriter(stream, binary=False)
            if is_matrix:
                writer.write_float_matrix(rng.normal(size=(3, 2)))
            else:
                stream.write(b"3 4 5 5\n")


def write_kaldi_features(folder, rng):
    """Write how features of two of Kaldi's systems are made, and of a job."""
    for name in ("deltas", "spliced"):
        (folder / name).mkdir()
        (folder / name / "cmvn_opts").write_text("--norm-vars=false\n")
    (folder / "deltas/delta_opts").write_text("--delta-order=2 --delta-window=3\n")
    (folder / "spliced/splice_opts").write_text("--left-context=1\n")
    write_matrix(folder / "spliced/final.mat", rng.normal(size=(4, 12)))
    (folder / "spliced/num_jobs").write_text("1\n")
    write_matrices(folder / "spliced/trans.1", [("s", rng.normal(size=(2, 3)))])


def use_kaldi_features(folder):
    for name in ("deltas", "spliced"):
        transform = read_transform(folder / name)
        check_cmvn(folder / name, read_options(SpeakerCmvn, {}))
        transform(np.zeros((4, 2), np.float32))
    merged_transforms(job_files(folder / "spliced", "trans.{}"), 2)


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "matrices": ("a.ark", write_matrix_archive, use_all(read_matrices)),
    "integer vectors": ("a.ark", write_vector_archive, use_all(read_int_vectors)),
    "nnet3": ("final.mdl", write_nnet3, use_nnet3),
    "nnet3 of Kaldi's components": ("final.mdl", write_xconfig, use_nnet3),
    "Kaldi's data": ("", write_kaldi_dir, lambda p: import_kaldi_dir(p, p / "out")),
    "alignments": ("ali.ark", write_vector_archive, use_alignments),
    "Kaldi's system": ("", write_kaldi_system, use_kaldi_system),
    "compressed matrices": ("a.ark", write_compressed, use_all(read_matrices)),
    "matrices as text": (
        "a.ark",
        lambda p, rng: write_text_archive(p, rng, is_matrix=True),
        use_all(read_matrices),
    ),
    "integer vectors as text": (
        "a.ark",
        lambda p, rng: write_text_archive(p, rng, is_matrix=False),
        use_all(read_int_vectors),
    ),
    "integer vectors, packed": (
        "a.ark.gz",
        write_vector_archive,
        use_all(read_int_vectors),
    ),
    "options of Kaldi's features": ("", write_kaldi_features, use_kaldi_features),
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
