"""Graphs, lattices and alignments with the tree of Kaldi's chain model (biphones, one
frame a phone, other pdfs for self-loops than for entries)."""

import shutil

import numpy as np
import pytest

from latflow.align.aligner import Aligner
from latflow.align.options import AlignOptions
from latflow.align.word_times import phone_segments
from latflow.decode.decoder import LatticeDecoder
from latflow.graphs.hclg import build_hclg, load_model
from latflow.graphs.options import ChainGraphOptions, GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.alignment import segments
from latflow.kaldi.io import read_matrices
from latflow.lattice.best_path import Scales, best_paths

SCALES = ChainGraphOptions()


@pytest.fixture(scope="module")
def tree_folder(golden, tmp_path_factory):
    """What a network of this tree works with."""
    folder = tmp_path_factory.mktemp("chain")
    shutil.copyfile(golden / "chain/tree", folder / "tree")
    shutil.copyfile(golden / "chain/0.trans_mdl", folder / "final.mdl")
    return folder


@pytest.fixture(scope="module")
def outputs(golden):
    """Outputs of a network: log-likelihoods, a row for three frames."""
    return dict(read_matrices(golden / "chain/nnet_output.txt.gz"))


def graph_of(lang, tree_folder, scales=SCALES):
    """The decoding graph."""
    return build_hclg(
        lang.folder, lang.folder / "G.fst", *load_model(tree_folder), scales
    )


def decoded(graph, model, scores):
    """The best path at an acoustic scale of 1, as for all networks of this kind."""
    decoder = LatticeDecoder(graph, model.pdf, beam=15.0, lattice_beam=6.0)
    lattice = decoder.decode(scores, acoustic_scale=1.0).lattice
    return best_paths(lattice, [Scales()])[0]


def check_pdfs(transition_ids, tree, model):
    """Each phone has an entry and self-loops, with the pdfs of its left context."""
    phones, bounds, is_cut_off = phone_segments(transition_ids, model)
    assert not is_cut_off
    left = 0
    for phone, first, last in zip(phones, bounds[:-1], bounds[1:], strict=True):
        pdfs = model.pdf[transition_ids[first:last]]
        assert pdfs[0] == tree.pdf((left, phone), 0)
        assert (pdfs[1:] == tree.pdf((left, phone), 1)).all()
        left = phone
    return phones


def test_paths_have_the_pdfs_of_left_biphones(lang, tree_folder, outputs):
    tree, model = load_model(tree_folder)
    assert (tree.context_width, tree.central_position) == (2, 1)
    graph = graph_of(lang, tree_folder)
    for scores in outputs.values():
        path = decoded(graph, model, scores)
        assert len(path.transition_ids) == len(scores)
        assert len(check_pdfs(path.transition_ids, tree, model)) > len(path.words) > 0


def test_at_self_loop_scale_one_each_frame_costs_the_same(lang, tree_folder, outputs):
    """Staying and leaving have probability 1/2: a path of T frames costs T log 2."""
    _, model = load_model(tree_folder)
    costs = []
    for scale in (0.0, 1.0):
        graph = graph_of(lang, tree_folder, GraphOptions(self_loop_scale=scale))
        costs.append(
            {
                utterance: decoded(graph, model, scores)
                for utterance, scores in outputs.items()
            }
        )
    for utterance, scores in outputs.items():
        without, full = costs[0][utterance], costs[1][utterance]
        np.testing.assert_array_equal(without.transition_ids, full.transition_ids)
        extra = full.graph_cost - without.graph_cost
        assert extra == pytest.approx(len(scores) * np.log(2), rel=1e-4)


def test_words_are_aligned_at_the_rate_of_the_outputs(lang, tree_folder, outputs):
    tree, model = load_model(tree_folder)
    graph = graph_of(lang, tree_folder)
    compiler = TrainingGraphCompiler(lang, tree, model)
    options = AlignOptions(acoustic_scale=1.0, beam=100.0)
    aligner = Aligner(model, options, SCALES)
    for scores in outputs.values():
        path = decoded(graph, model, scores)
        found = aligner.align(compiler.compile(path.words), scores)
        assert len(found.transition_ids) == len(scores)
        _, _, lengths = segments(found.transition_ids, model)
        assert lengths.sum() == len(scores)
        check_pdfs(found.transition_ids, tree, model)
        # The language model has no say here: no other path of the words is better.
        rows = np.arange(len(scores))
        best = scores[rows, model.pdf[found.transition_ids]].sum()
        other = scores[rows, model.pdf[path.transition_ids]].sum()
        assert best >= other - 1.0
