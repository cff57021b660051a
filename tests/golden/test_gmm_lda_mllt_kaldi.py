"""LDA and MLLT against the matrices and systems that Kaldi made on the digits corpus.

Kaldi estimated both from a random quarter of the frames (--rand-prune=4), we from all:
its directions are as good as ours within the noise of that.
"""

import json
import shutil

import numpy as np
import pytest
from fixtures.data_dir import write_mfcc_store

from latflow.align.corpus import AlignmentSummary
from latflow.align.options import AlignOptions
from latflow.features.frames import FrameStore
from latflow.features.transform import Chain, Linear, Splice
from latflow.gmm import lda_mllt
from latflow.gmm.alignment import align_gmm, align_source
from latflow.gmm.lda_mllt import (
    LdaAccumulator,
    LdaEstimate,
    LdaMlltJob,
    lda_of,
    pdfs_without,
)
from latflow.gmm.model import AcousticModel, GmmSystem, save_transform
from latflow.gmm.options import AlignAdaptedOptions, LdaMlltOptions, SharedOptions
from latflow.gmm.source import FrameSource
from latflow.gmm.train import known_alignments
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.kaldi.io import KaldiReader, read_matrices
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.parallel import worker_pool
from latflow.parts import SetJob

LIMITS = {"threads": 2, "max_skipped_fraction": 0.0}


def matrix_of(path):
    with KaldiReader.open(path) as reader:
        return reader.float_matrix().astype(float)


@pytest.mark.parametrize("kind", ["cmvn", "nocmvn"])
def test_features_through_kaldis_matrix(golden, kind):
    transform = Chain(
        [Splice(3, 3), Linear(matrix_of(golden / "transform/lda_mllt.mat"))]
    )
    if kind == "cmvn":
        cepstra = {
            key: value[:, :13]
            for key, value in read_matrices(golden / "features/mfcc39_cmvn.txt.gz")
        }
    else:
        cepstra = dict(read_matrices(golden / "features/mfcc13_snip_true.txt.gz"))
    wanted = dict(read_matrices(golden / f"transform/lda_mllt_feats_{kind}.txt.gz"))
    assert len(wanted) == 6
    for utterance, features in wanted.items():
        np.testing.assert_allclose(
            transform(cepstra[utterance]), features, rtol=1e-4, atol=2e-4
        )


@pytest.fixture(scope="module")
def digits(golden, corpora, repository, tmp_path_factory):
    """Frames of the training set, aligned with the triphones that Kaldi trained."""
    root = tmp_path_factory.mktemp("digits")
    write_mfcc_store(root / "frames", corpora / "digits/train")
    lang_options = LangOptions()
    make_lang(golden / "lang/lexicon.txt", root / "lang", options=lang_options)
    shutil.copytree(golden / "gmm/tri1", root / "tri1")
    deltas = {"type": "deltas", "order": 2, "window": 2}
    (root / "tri1/transform.json").write_text(json.dumps(deltas))
    frames, lang, tri1 = root / "frames", root / "lang", root / "tri1"
    align_gmm(
        SetJob(
            frames_dir=frames,
            lang_dir=lang,
            model_dir=tri1,
            out_dir=root / "ali/tri1",
            **LIMITS,
        ),
        options=AlignAdaptedOptions(),
        graph=GraphOptions(),
    )
    return root


def summary_of(folder, frames, lang):
    """Outcome of aligning a split with a system."""
    store, system = FrameStore.load(frames), GmmSystem.load(folder)
    source = FrameSource(store, system.transform, np.arange(len(store)))
    transitions = system.model.transitions
    lang, options = Lang.load(lang), AlignOptions()
    compiler = TrainingGraphCompiler(lang, system.tree, transitions)
    summary = AlignmentSummary(options)
    with worker_pool(2) as pool:
        found = align_source(
            system.model,
            source,
            lambda u: compiler.compile(lang.words_to_ids(source.text(u))),
            options,
            GraphOptions(),
            [],
            pool,
        )
        for u, alignment in enumerate(found):
            summary.add(u, alignment)
    return summary


def spliced_statistics(root, transitions):
    store, lang = FrameStore.load(root / "frames"), Lang.load(root / "lang")
    source = FrameSource(store, Splice(3, 3), np.arange(len(store)), cache_bytes=0)
    statistics = LdaAccumulator.zeros(transitions.num_pdfs, source.dim)
    pdfs = pdfs_without(lang.silence_phones, transitions)
    with worker_pool(1) as pool:
        for u, ids in known_alignments(source, root / "ali/tri1/ali.ark"):
            statistics.accumulate(source.frames(u), pdfs[ids], pool)
    return source, lang, statistics


@pytest.mark.slow
def test_lda_is_as_good_as_kaldis(digits, golden):
    transitions = AcousticModel.load(digits / "tri1/final.mdl").transitions
    source, lang, statistics = spliced_statistics(digits, transitions)
    ours = lda_of(
        source,
        digits / "ali/tri1/ali.ark",
        transitions,
        lang,
        40,
        threads=1,
    )
    kaldis = matrix_of(golden / "transform/lda.mat")
    # On all frames, Kaldi's matrix almost whitens what is inside the classes, and the
    # variances between them are almost ours.
    within, between = (kaldis @ c @ kaldis.T for c in statistics.covariances())
    np.testing.assert_allclose(within, np.eye(40), atol=0.05)
    np.testing.assert_allclose(
        np.diag(between)[:20], ours.ratios[:20], rtol=0.05, atol=0.02
    )
    kept = np.trace(np.linalg.solve(within, between))
    best = ours.ratios[:40].sum()
    assert 0.99 * best < kept <= best


@pytest.mark.slow
def test_tri2_is_as_likely_as_kaldis(digits, golden, corpora, monkeypatch):
    """On unseen speech, with Kaldi's directions of LDA, which MLLT only turns.

    The density of the projected frames A x depends on the volume of A; in orthonormal
    coordinates of the same space it is p(A x) sqrt(det A A').
    """
    full = matrix_of(golden / "transform/lda_mllt_full.mat")
    kaldis_lda = LdaEstimate(full, np.zeros(91), np.zeros(91))
    monkeypatch.setattr(lda_mllt, "lda_of", lambda *_, **__: kaldis_lda)
    sizes = {"num_leaves": 150, "num_gaussians": 1000}
    options = LdaMlltOptions(alignments="tri1", **sizes)
    shared = SharedOptions()
    ours, theirs = digits / "tri2", digits / "tri2b"
    frames, lang, tri1 = (digits / name for name in ("frames", "lang", "tri1"))
    ali = digits / "ali/tri1/ali.ark"
    lda_mllt.train_lda_mllt(
        LdaMlltJob(
            frames_dir=frames,
            lang_dir=lang,
            alignments=ali,
            source_dir=tri1,
            out_dir=ours,
            options=options,
            shared=shared,
            threads=2,
        )
    )
    shutil.copytree(golden / "gmm/tri2b", theirs)
    matrix = matrix_of(theirs / "final.mat")
    save_transform(theirs, Chain([Splice(3, 3), Linear(matrix)]))
    test = write_mfcc_store(digits / "test", corpora / "digits/test")
    likes, sizes = [], []
    for folder in (ours, theirs):
        found = summary_of(folder, test, lang)
        assert found.num_aligned == 63
        matrix = matrix_of(folder / "final.mat")
        volume = 0.5 * np.linalg.slogdet(matrix @ matrix.T)[1]
        likes.append(found.log_like / found.num_frames + volume)
        gmms = AcousticModel.load(folder / "final.mdl").gmms
        sizes.append((gmms.num_pdfs, gmms.num_gaussians))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)
    assert likes[0] == pytest.approx(likes[1], abs=0.15)
