"""The tree that comes out of the digits is Kaldi's.

Kaldi's own monophone model aligns the training set; the statistics, questions and tree
made from that must tie the states as Kaldi's tri1 does: the same 96 leaves, the same
questions but where a set without any data (spoken noise) is put. The same holds for
the biphones of a network that subsamples, aligned by tri2b.
"""

import shutil
import warnings
from collections import Counter
from itertools import product

import numpy as np
import pytest
import soundfile
import torch
from lhotse.features.kaldi.layers import Wav2MFCC

from latflow.align.aligner import Aligner, Alignment
from latflow.align.options import AlignOptions
from latflow.features.frames import FrameWriter
from latflow.features.transform import Chain, Deltas, Linear, Splice
from latflow.fst.graph import Graph
from latflow.gmm.alignment import MixtureScorer
from latflow.gmm.chain_tree import build_chain_tree
from latflow.gmm.model import AcousticModel, save_transform
from latflow.graphs.hclg import load_model
from latflow.graphs.options import ChainTreeOptions, GraphOptions, PhoneLmOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.clustering import log_likelihood
from latflow.hmm.tree import ContextDependency
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import TreeStatistics, cluster_phones
from latflow.kaldi.io import KaldiReader, write_int_vectors
from latflow.lang.directory import Lang

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
    compiler = TrainingGraphCompiler(lang, tree, model.transitions)
    aligner = Aligner(model.transitions, AlignOptions(), GraphOptions())
    scorer = MixtureScorer(model.gmms)
    total = TreeStatistics()
    for utt_id, text in columns(corpora / "digits/train/text").items():
        graph = compiler.compile(lang.words_to_ids(text))
        aligned = aligner.align(graph, scorer.scores(features[utt_id]))
        assert isinstance(aligned, Alignment)
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


@pytest.fixture(scope="module")
def chain(golden, corpora, features, tmp_path_factory):
    """Folder of a network's tree, from alignments by Kaldi's tri2b."""
    root = tmp_path_factory.mktemp("chain")
    with KaldiReader.open(golden / "gmm/tri2b/final.mat") as reader:
        transform = Chain([Splice(3, 3), Linear(reader.float_matrix())])
    for name in ("final.mdl", "tree"):
        shutil.copy(golden / "gmm/tri2b" / name, root / name)
    save_transform(root, transform)
    lang, (tree, transitions) = Lang.load(golden / "lang"), load_model(root)
    scorer = MixtureScorer(AcousticModel.load(root / "final.mdl").gmms)
    compiler = TrainingGraphCompiler(lang, tree, transitions)
    aligner = Aligner(transitions, AlignOptions(), GraphOptions())
    alignments = {}
    with FrameWriter(root / "frames", dim=13) as writer:
        for utt_id, text in columns(corpora / "digits/train/text").items():
            cepstra = np.ascontiguousarray(features[utt_id][:, :13])
            writer.append(utt_id, "s", text, cepstra)
            graph = compiler.compile(lang.words_to_ids(text))
            frames = transform.apply(cepstra, np.array([0, len(cepstra)]))
            aligned = aligner.align(graph, scorer.scores(frames))
            assert isinstance(aligned, Alignment)
            alignments[utt_id] = aligned.transition_ids
    write_int_vectors(root / "ali.ark", alignments.items())
    build_chain_tree(
        root / "frames",
        golden / "lang",
        root / "ali.ark",
        root,
        None,
        root / "tdnn",
        options=ChainTreeOptions(
            num_leaves=100, phone_lm=PhoneLmOptions(num_extra_lm_states=50)
        ),
        threads=1,
    )
    return root / "tdnn"


def test_biphones_of_a_network_are_tied_as_in_kaldi(golden, chain):
    ours = ContextDependency.load(chain / "tree")
    theirs = ContextDependency.load(golden / "chain/tree")
    assert ours.num_pdfs == theirs.num_pdfs == 56
    lm = Graph.load(chain / "phone_lm.fst")
    before = dict(zip(lm.next_state.tolist(), lm.ilabel.tolist(), strict=True))
    windows = {
        (before.get(state, 0), phone)
        for state, phone in zip(lm.sources().tolist(), lm.ilabel.tolist(), strict=True)
    }
    pairs = {
        (ours.pdf(window, pdf_class), theirs.pdf(window, pdf_class))
        for window, pdf_class in product(windows, (0, 1))
    }
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    assert len(pairs) == 55  # spoken noise has no data


def test_the_phone_language_model_is_that_of_kaldi(golden, chain):
    """But for two of 3,000 phones, optional silences of another model's alignment."""
    ours = Graph.load(chain / "phone_lm.fst")
    theirs = Graph.load(golden / "chain/phone_lm.fst")
    assert abs(ours.num_states - theirs.num_states) <= 1
    assert abs(ours.num_arcs - theirs.num_arcs) <= 2
    costs = [np.sort(graph.weight).round(3).tolist() for graph in (ours, theirs)]
    common = Counter(costs[0]) & Counter(costs[1])
    assert common.total() > 0.85 * theirs.num_arcs
