from itertools import product

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.graphs.chain import ChainGraphs, initial_probabilities, make_chain_graphs
from latflow.graphs.options import PhoneLmOptions
from latflow.graphs.phone_lm import estimate_phone_lm
from latflow.hmm.event_map import PDF_CLASS, Constant, Split, Table
from latflow.hmm.topology import chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency

PHONES = [1, 2, 3]


def biphone_tree():
    """Phones 1 and 2 know whether 1 was before them; 3 has one pdf for all frames."""
    pairs = {
        phone: Split(0, [0, 1], Table(PDF_CLASS, pair), Table(PDF_CLASS, other))
        for phone, pair, other in (
            (1, [Constant(0), Constant(1)], [Constant(2), Constant(1)]),
            (2, [Constant(3), Constant(4)], [Constant(3), Constant(5)]),
        )
    }
    return ContextDependency(2, 1, Table(1, [None, pairs[1], pairs[2], Constant(6)]))


def made(sequences, tree=None):
    tree = tree or biphone_tree()
    lm = estimate_phone_lm(sequences, PhoneLmOptions(num_extra_lm_states=3))
    transitions = TransitionModel.from_tree(tree, chain_topology(PHONES))
    return lm, tree, make_chain_graphs(lm, tree, transitions)


SEQUENCES = [[1, 2, 3], [1, 1, 2], [3, 1], [2, 3, 1, 2], [1], [3, 3, 2]]


def cost(graph, labels, add=np.logaddexp):
    """Cost of a label sequence, over all paths (or the best one)."""
    scores = np.full(graph.num_states, -np.inf)
    scores[graph.start] = 0.0
    sources = graph.sources()
    for label in labels:
        after = np.full(graph.num_states, -np.inf)
        for arc in np.flatnonzero(graph.ilabel == label):
            score = scores[sources[arc]] - graph.weight[arc]
            target = graph.next_state[arc]
            after[target] = add(after[target], score)
        scores = after
    return -add.reduce(scores - graph.final)


def direct_costs(lm, tree, num_frames):
    """{pdf + 1 sequence: cost} of all phone sequences with all durations."""
    found: dict[tuple[int, ...], float] = {}

    def visit(state, before, labels, total):
        final = float(lm.final[state])
        if labels and final < np.inf:
            known = found.get(labels, np.inf)
            found[labels] = -float(np.logaddexp(-known, -(total + final)))
        for arc in range(lm.arc_begin[state], lm.arc_begin[state + 1]):
            phone = int(lm.ilabel[arc])
            first, more = (tree.pdf((before, phone), c) + 1 for c in (0, 1))
            for frames in range(1, num_frames - len(labels) + 1):
                visit(
                    int(lm.next_state[arc]),
                    phone,
                    (*labels, first, *[more] * (frames - 1)),
                    total + float(lm.weight[arc]) + frames * np.log(2.0),
                )

    visit(lm.start, 0, (), 0.0)
    return found


def test_the_denominator_is_the_language_model_with_all_durations():
    lm, tree, graphs = made(SEQUENCES)
    num_frames = 4
    wanted = direct_costs(lm, tree, num_frames)
    for length in range(1, num_frames + 1):
        for labels in product(range(1, 8), repeat=length):
            got = cost(graphs.denominator, labels)
            if labels in wanted:
                # costs are rounded to 0.01 when states are merged
                assert got == pytest.approx(wanted[labels], abs=0.03 * length)
            else:
                assert got == np.inf
    assert not (graphs.denominator.ilabel == 0).any()
    assert (graphs.denominator.ilabel == graphs.denominator.olabel).all()


def test_initial_probabilities_are_the_mean_over_100_frames():
    denominator = made(SEQUENCES)[2].denominator
    step = np.zeros((denominator.num_states, denominator.num_states))
    np.add.at(
        step,
        (denominator.sources(), denominator.next_state),
        np.exp(-denominator.weight.astype(np.float64)),
    )
    ending = np.exp(-denominator.final.astype(np.float64))
    step /= (step.sum(axis=1) + ending)[:, None]
    present = np.eye(denominator.num_states)[denominator.start]
    visited = []
    for _ in range(100):
        visited.append(present)
        present = present @ step
        present /= present.sum()
    got = initial_probabilities(denominator)
    np.testing.assert_allclose(got, np.mean(visited, axis=0), rtol=1e-9)
    assert got.sum() == pytest.approx(1.0)


def test_the_normalization_graph_begins_and_ends_anywhere():
    graphs = made(SEQUENCES)[2]
    denominator = graphs.denominator
    for labels in [(1,), (4, 5), (7, 7), (2, 4, 6), (3, 1, 2), (5, 5, 7, 3)]:
        best = np.inf
        for state, probability in enumerate(graphs.initial_probs):
            scores = np.full(denominator.num_states, np.inf)
            scores[state] = -np.log(probability)
            for label in labels:
                after = np.full(denominator.num_states, np.inf)
                arcs = np.flatnonzero(denominator.ilabel == label)
                ends = denominator.next_state[arcs]
                reached = scores[denominator.sources()[arcs]] + denominator.weight[arcs]
                np.minimum.at(after, ends, reached)
                scores = after
            best = min(best, scores.min())
        got = cost(graphs.normalization, labels, add=np.maximum)
        assert got == pytest.approx(best, abs=1e-5)


def test_graphs_survive_their_files(tmp_path):
    graphs = made(SEQUENCES)[2]
    graphs.write(tmp_path)
    again = ChainGraphs.read(tmp_path)
    for old, new in (
        (graphs.denominator, again.denominator),
        (graphs.normalization, again.normalization),
    ):
        assert (old.arcs == new.arcs).all()
        assert old.start == new.start
    np.testing.assert_array_equal(graphs.initial_probs, again.initial_probs)


def test_pdfs_that_no_path_has_are_told(caplog):
    graphs = made([[1, 1], [1, 2]])[2]
    assert "3 of 7 pdfs are not in the denominator, such as 2" in caplog.text
    assert graphs.denominator.num_arcs


def test_a_phone_without_tree_is_refused():
    with pytest.raises(UserError, match="the tree has no pdf for phone 2"):
        made([[1, 2], [3]], ContextDependency(1, 0, Table(0, [None, Constant(0)])))


def test_a_phone_without_topology_is_refused():
    with pytest.raises(UserError, match="phone 4 is not in the topology"):
        made([[1, 2], [4]])


def test_a_language_model_without_phones_is_refused():
    lm, tree, graphs = made(SEQUENCES)
    empty = type(lm).from_arc_list(0, np.zeros(0, int), lm.arcs[:0], np.zeros(1, "f4"))
    transitions = TransitionModel.from_tree(tree, chain_topology(PHONES))
    with pytest.raises(UserError, match="no phones"):
        make_chain_graphs(empty, tree, transitions)
    assert graphs.denominator.num_states
