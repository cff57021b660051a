"""Directories as Kaldi's scripts leave them, made of the golden files."""

import shutil

import numpy as np

from latflow.features.cmvn import normalize
from latflow.features.frames import FrameWriter
from latflow.features.options import FeatureOptions, SpeakerCmvn
from latflow.kaldi.io import read_int_vectors, read_matrices, write_int_vectors

SYSTEMS = ("mono", "tri1", "tri2b", "tri3b")
FEATURES = FeatureOptions()


def make_exp(golden, system, folder):
    """An `exp/<system>`; alignments of the six test utterances in two pieces."""
    shutil.copytree(golden / "gmm" / system, folder, copy_function=shutil.copyfile)
    shutil.copyfile(golden / "lang/phones.txt", folder / "phones.txt")
    (folder / "num_jobs").write_text("2\n")
    (folder / "cmvn_opts").write_text("\n")
    if (folder / "final.mat").exists():
        (folder / "splice_opts").write_text("--left-context=3 --right-context=3\n")
        shutil.copyfile(golden / "transform/lda_mllt_full.mat", folder / "full.mat")
    alignments = {
        "mono": "align/ali_mono.txt",
        "tri1": "align/ali_tri1.txt",
        "tri3b": "transform/ali_tri3b_pass1.txt",
    }
    if system in alignments:
        items = list(read_int_vectors(golden / alignments[system]))
        write_int_vectors(folder / "ali.1.gz", items[:3])
        write_int_vectors(folder / "ali.2.gz", items[3:])
    if system == "tri3b":
        text = (golden / "transform/fmllr_per_speaker.txt").read_text()
        cut = text.index("nicolas ")
        (folder / "trans.1").write_text(text[:cut])
        (folder / "trans.2").write_text(text[cut:])
    return folder


def make_graph_dir(golden, system, folder):
    """An `exp/<system>/graph`."""
    (folder / "phones").mkdir(parents=True)
    shutil.copyfile(golden / f"graph/HCLG_{system}.fst", folder / "HCLG.fst")
    for name in ("words.txt", "phones.txt"):
        shutil.copyfile(golden / "lang" / name, folder / name)
    info = (golden / "gmm" / system / "info.txt").read_text()
    (folder / "num_pdfs").write_text(info.split("number of pdfs ")[1].split()[0] + "\n")
    return folder


def make_frames(golden, folder):
    """A `FrameStore` of the six test utterances."""
    statistics = dict(read_matrices(golden / "features/cmvn_per_speaker.txt"))
    speakers = read_table(golden / "utt2spk")
    texts = read_table(golden / "align/text")
    meta = {"cmvn": FEATURES.cmvn.values()}
    with FrameWriter(folder, dim=13, meta=meta) as writer:
        path = golden / "features/mfcc13_snip_true.txt.gz"
        for utterance, frames in read_matrices(path):
            speaker = speakers[utterance]
            normal = normalize(
                frames, SpeakerCmvn(), statistics[speaker].astype(np.float64)
            )
            writer.append(utterance, speaker, texts[utterance], normal)
    return folder


def read_table(path):
    """Lines of a key and a text."""
    rows = (line.partition(" ") for line in path.read_text().splitlines())
    return {key: text.strip() for key, _, text in rows}
