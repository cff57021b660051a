"""Training on adapted features from Kaldi's LDA+MLLT system, as Kaldi did on digits."""

import json
import shutil

import numpy as np
import pytest
from fixtures.data_dir import write_mfcc_store

from latflow.corpus.textgrid import Interval
from latflow.features.frames import FrameStore
from latflow.features.transform import Chain, Linear, Splice
from latflow.gmm.alignment import align_gmm
from latflow.gmm.model import AcousticModel, save_transform
from latflow.gmm.options import AlignAdaptedOptions, SatOptions, SharedOptions
from latflow.gmm.sat import SatJob, train_sat
from latflow.graphs.options import GraphOptions
from latflow.hmm.alignment import segments
from latflow.kaldi.io import KaldiReader, read_int_vectors, read_matrices
from latflow.parts import SetJob
from latflow.scoring.boundaries import compare_labels

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


def phones_of(folder, transitions):
    """Phones of all utterances, silences left out, with times."""
    silence = set(range(1, 11))  # SIL and SPN, alone and by place in a word
    return {
        utterance: [
            Interval(0.01 * start, 0.01 * (start + length), str(phone))
            for phone, start, length in zip(*segments(ids, transitions), strict=True)
            if phone not in silence
        ]
        for utterance, ids in read_int_vectors(folder / "ali.ark")
    }


@pytest.mark.slow
def test_system_is_like_kaldis(golden, corpora, tmp_path):
    """Sizes, how well held-out speech fits, and where its phones begin.

    With Kaldi's own models alignments are Kaldi's (`test_gmm_align.py`).
    """
    for name in ("tri2b", "tri3b"):
        shutil.copytree(golden / "gmm" / name, tmp_path / name)
        with KaldiReader.open(tmp_path / name / "final.mat") as reader:
            matrix = reader.float_matrix()
        save_transform(tmp_path / name, Chain([Splice(3, 3), Linear(matrix)]))
    lang, train = golden / "lang", tmp_path / "train"
    write_mfcc_store(train, corpora / "digits/train")
    aligning = {"options": AlignAdaptedOptions(), "graph": GraphOptions()}
    align_gmm(
        SetJob(
            frames_dir=train,
            lang_dir=lang,
            model_dir=tmp_path / "tri2b",
            out_dir=tmp_path / "ali",
            **LIMITS,
        ),
        **aligning,
    )
    options = SatOptions(alignments="tri2b", num_leaves=150, num_gaussians=1000)
    chosen = {"options": options, "shared": SharedOptions()}
    ali, source = tmp_path / "ali/ali.ark", tmp_path / "tri2b"
    train_sat(
        SatJob(
            **chosen,
            frames_dir=train,
            lang_dir=lang,
            alignments=ali,
            source_dir=source,
            out_dir=tmp_path / "ours",
            threads=2,
        )
    )
    sizes, fits, phones = [], [], []
    for name in ("ours", "tri3b"):
        out = tmp_path / "test" / name
        write_mfcc_store(out / "frames", corpora / "digits/test")
        align_gmm(
            SetJob(
                frames_dir=out / "frames",
                lang_dir=lang,
                model_dir=tmp_path / name,
                out_dir=out,
                **LIMITS,
            ),
            **aligning,
        )
        fits.append(fit(out))
        model = AcousticModel.load(tmp_path / name / "final.mdl")
        sizes.append((model.gmms.num_pdfs, model.gmms.num_gaussians))
        phones.append(phones_of(out, model.transitions))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)
    assert fits[0] == pytest.approx(fits[1], abs=0.1)
    found = compare_labels(phones[1], phones[0]).values()
    assert found["matched"] > 0.98 * max(found["labels"])
    assert found["boundaries"]["mean_ms"] < 5.0
    assert found["boundaries"]["within_10_ms"] > 0.9
