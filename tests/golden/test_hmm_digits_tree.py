"""The tree that comes out of the digits is Kaldi's.

Kaldi's own monophone model aligns the training set; the statistics, questions and tree
made from that must tie the states as Kaldi's tri1 does: the same 96 leaves, the same
questions but where a set without any data (spoken noise) is put.
"""

import warnings

import numpy as np
import pytest
import soundfile
import torch
from lhotse.features.kaldi.layers import Wav2MFCC

from latflow.features.transform import Deltas
from latflow.gmm.model import AcousticModel
from latflow.gmm.viterbi import Aligner, Scales
from latflow.hmm.gauss_clustering import log_likelihood
from latflow.hmm.questions import cluster_phones
from latflow.hmm.tree import ContextDependency
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import TreeStatistics
from latflow.lang.directory import Lang
from latflow.lang.graphs import TrainingGraphCompiler

pytestmark = pytest.mark.slow
FLOOR = 0.01


def columns(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)


@pytest.fixture(scope="module")
def features(corpora):
    """Cepstra of each training utterance: mean of the speaker removed, and deltas."""
    folder = corpora / "digits/train"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extract = Wav2MFCC(
            sampling_rate=8000,
            dither=0.0,
            snip_edges=True,
            use_energy=False,
            high_freq=0.0,
        )
    cepstra = {}
    for utt_id, path in columns(folder / "wav.scp").items():
        samples, _ = soundfile.read(folder / path, dtype="int16")
        wave = torch.tensor(samples.astype(np.float32))[None]
        cepstra[utt_id] = extract(wave)[0].numpy()
    speakers = columns(folder / "utt2spk")
    deltas = Deltas(order=2, window=2)
    for speaker in set(speakers.values()):
        mine = [utt for utt, who in speakers.items() if who == speaker]
        mean = np.concatenate([cepstra[u] for u in mine]).mean(axis=0, dtype=float)
        for utt_id in mine:
            frames = (cepstra[utt_id] - mean).astype(np.float32)
            cepstra[utt_id] = deltas(frames)
    return cepstra


@pytest.fixture(scope="module")
def statistics(golden, corpora, features):
    """Statistics of the training set, aligned by Kaldi's monophone model."""
    lang = Lang.load(golden / "lang")
    model = AcousticModel.load(golden / "gmm/mono/final.mdl")
    tree = ContextDependency.load(golden / "gmm/mono/tree")
    compiler = TrainingGraphCompiler(
        lang, tree, model.transitions, self_loop_scale=0.0, transition_scale=0.0
    )
    aligner = Aligner(model, scales=Scales())
    total = TreeStatistics()
    for utt_id, text in columns(corpora / "digits/train/text").items():
        graph = compiler.compile(lang.words_to_ids(text))
        aligned = aligner.align(graph, features[utt_id], beam=10.0, retry_beam=40.0)
        assert aligned is not None
        total.accumulate(
            features[utt_id],
            aligned.transition_ids,
            model.transitions,
            lang.context_independent,
        )
    return total.arrays()


def test_states_are_tied_as_in_kaldi(golden, statistics):
    lang = Lang.load(golden / "lang")
    questions = cluster_phones(
        statistics,
        lang.phone_sets,
        lang.topology,
        extra_questions=lang.extra_questions,
    )
    tree = build_tree(statistics, questions, lang.roots, lang.topology, max_leaves=150)
    theirs = ContextDependency.load(golden / "gmm/tri1/tree")
    assert tree.num_pdfs == theirs.num_pdfs == 96
    ours_of, theirs_of = (
        t.to_pdf.answers(statistics.columns).tolist() for t in (tree, theirs)
    )
    pairs = set(zip(ours_of, theirs_of, strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    # spoken noise has a root but no data
    assert len(pairs) == 95
    for one in (tree, theirs):
        count, total, squares = leaf_statistics(statistics, one)
        leaves = np.hstack([count[:, None], total, squares])
        objf = sum(log_likelihood(row, FLOOR) for row in leaves) / count.sum()
        assert objf == pytest.approx(-76.27, abs=0.05)
