"""Training on adapted features from Kaldi's LDA+MLLT system, as Kaldi did on digits."""

import json
import shutil

import numpy as np
import pytest
from reference.data_dir import write_mfcc_store

from latflow.configuration import resolve_section
from latflow.features.frames import FrameStore
from latflow.features.transform import Chain, Linear, Splice
from latflow.gmm.align import align
from latflow.gmm.model import AcousticModel
from latflow.gmm.sat import train_sat
from latflow.gmm.system import save_transform
from latflow.kaldi_io import KaldiReader, read_matrices

GRAPH = {"transition_scale": 1.0, "self_loop_scale": 0.1}
LIMITS = {"threads": 2, "max_skipped_fraction": 0.0}


def fit(folder):
    """Mean log-likelihood of a frame as it was before its speaker's transform."""
    store = FrameStore.load(folder / "frames")
    lengths = np.diff(store.begin)
    volume = 0.0
    transforms = dict(read_matrices(folder / "trans.ark"))
    for speaker, matrix in transforms.items():
        is_mine = np.array([s == speaker for s in store.speakers])
        _, log_det = np.linalg.slogdet(matrix[:, :-1].astype(float))
        volume += log_det * lengths[is_mine].sum()
    statistics = json.loads((folder / "statistics.json").read_text())
    assert statistics["num_aligned"] == len(store)
    return statistics["log_like_per_frame"] + volume / lengths.sum()


@pytest.mark.slow
def test_system_is_like_kaldis(golden, corpora, repository, tmp_path):
    """Sizes, and how well held-out speech fits, over both passes of alignment."""
    schemas = repository / "workflow/schemas"
    for name in ("tri2b", "tri3b"):
        shutil.copytree(golden / "gmm" / name, tmp_path / name)
        with KaldiReader.open(tmp_path / name / "final.mat") as reader:
            matrix = reader.float_matrix()
        save_transform(tmp_path / name, Chain([Splice(3, 3), Linear(matrix)]))
    systems = {
        "mono": {"type": "mono"},
        "tri2b": {"type": "lda_mllt", "alignments": "mono"},
        "ours": {"type": "sat", "alignments": "tri2b"},
    }
    systems["ours"] |= {"num_leaves": 150, "num_gaussians": 1000}
    section = resolve_section(schemas, "gmm", {"systems": systems})
    common = {"graph": GRAPH, "seed": 1, "device": "cpu"}
    lang, train = golden / "lang", tmp_path / "train"
    write_mfcc_store(train, corpora / "digits/train")
    aligning = {**section["align"], **common}
    align(train, lang, tmp_path / "tri2b", tmp_path / "ali", options=aligning, **LIMITS)
    options = {**section["systems"]["ours"], **common}
    ali, source = tmp_path / "ali/ali.ark", tmp_path / "tri2b"
    train_sat(train, lang, ali, source, tmp_path / "ours", options=options, **LIMITS)
    sizes, fits = [], []
    for name in ("ours", "tri3b"):
        out = tmp_path / "test" / name
        write_mfcc_store(out / "frames", corpora / "digits/test")
        align(out / "frames", lang, tmp_path / name, out, options=aligning, **LIMITS)
        fits.append(fit(out))
        gmms = AcousticModel.load(tmp_path / name / "final.mdl").gmms
        sizes.append((gmms.num_pdfs, gmms.num_gaussians))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)
    assert fits[0] == pytest.approx(fits[1], abs=0.1)
