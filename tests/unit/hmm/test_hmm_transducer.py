"""H and self-loops for two phones: 1 with three states, 2 (silence) with five."""

import kaldifst
import numpy as np
import pytest
from reference.graphs import paths

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.hmm.topology import Topology
from latflow.hmm.transducer import (
    HmmCache,
    add_self_loops,
    h_transducer,
)
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency


@pytest.fixture(scope="module")
def system():
    topology = Topology.standard([1], [2])
    tree = ContextDependency.monophone([[1], [2]], topology.pdf_class_counts())
    return tree, TransitionModel.from_tree(tree, topology)


def test_h_maps_phones_to_their_transition_ids(system):
    tree, model = system
    h, disambig = h_transducer([[], [1], [-87], [2]], tree, model)
    assert disambig == [model.num_transition_ids + 1]
    for label, wanted in ((1, 1), (2, 1)):
        sequence = kaldifst.make_linear_acceptor([label])
        found = paths(Graph.from_fst(kaldifst.compose(h, sequence)))
        assert len(found) == wanted
    speech = paths(
        Graph.from_fst(kaldifst.compose(h, kaldifst.make_linear_acceptor([1])))
    )
    ((ids, out),) = speech
    assert out == (1,)
    assert [int(model.hmm_state[i]) for i in ids] == [0, 1, 2]
    assert not model.is_self_loop[list(ids)].any()
    assert speech[(ids, out)] == pytest.approx(0.0, abs=1e-6)


def test_h_gives_silence_a_way_through_each_inner_state(system):
    tree, model = system
    h = Graph.from_fst(h_transducer([[], [2]], tree, model)[0])
    begin = h.arc_begin
    # An epsilon arc into the HMM, whose first state has a choice of three.
    assert (begin[1], int(h.ilabel[0]), int(h.olabel[0])) == (1, 0, 1)
    first = int(h.next_state[0])
    leaving = [int(label) for label in h.ilabel[begin[first] : begin[first + 1]]]
    assert model.next_state[leaving].tolist() == [1, 2, 3]
    np.testing.assert_allclose(
        h.weight[begin[first] : begin[first + 1]], np.log(3), atol=1e-6
    )


def test_contexts_with_the_same_pdfs_share_an_hmm(system):
    tree, model = system
    cache = HmmCache(tree, model)
    assert cache.index([1]) == cache.index((1,)) == 0
    assert cache.index([2]) == 1
    assert [hmm.num_states for hmm in cache.hmms] == [4, 6]
    assert cache.hmms[0].shares_start
    assert not cache.hmms[1].shares_start


def test_scale_zero_leaves_probabilities_out(system):
    tree, model = system
    cache = HmmCache(tree, model, transition_scale=0.0)
    assert {arc[2] for arc in cache.hmms[cache.index([2])].arcs} == {0.0}


def phone_graph(model, tree):
    cache = HmmCache(tree, model)
    hmm = cache.hmms[cache.index([1])]
    labels = [arc[1] for arc in hmm.arcs]
    final = [np.inf] * 3 + [0.0]
    return Graph.from_arrays(
        0, [0, 1, 2, 3, 3], labels, [5, 0, 0], [0.0] * 3, [1, 2, 3], final
    )


def test_self_loops_follow_the_arc_that_enters(system):
    tree, model = system
    graph = phone_graph(model, tree)
    looped = add_self_loops(graph, model, self_loop_scale=1.0)
    assert (looped.num_states, looped.num_arcs) == (4, 6)
    for arc, source in enumerate(looped.sources()):
        label = int(looped.ilabel[arc])
        if looped.next_state[arc] == source:
            assert model.is_self_loop[label]
            assert looped.weight[arc] == pytest.approx(-np.log(0.75))
            entering = looped.ilabel[looped.next_state == source]
            assert set(model.state[entering]) == {model.state[label]}
    # What leaves a state with a loop costs -log(1 - 0.75), be it arc or final cost.
    assert looped.final[3] == pytest.approx(-np.log(0.25))
    assert looped.weight[looped.arc_begin[1]] == pytest.approx(-np.log(0.25))
    assert looped.weight[0] == 0.0


def test_states_with_two_ways_in_are_split(system):
    _, model = system
    ids = [int(i) for i in np.flatnonzero(~model.is_self_loop)[1:3]]
    assert model.state[ids[0]] != model.state[ids[1]]
    graph = Graph.from_arrays(
        0, [0, 2, 2], ids, [1, 2], [0.0, 0.0], [1, 1], [np.inf, 0.0]
    )
    looped = add_self_loops(graph, model, self_loop_scale=0.0)
    assert looped.num_states == 4
    assert looped.next_state[:2].tolist() == [2, 3]
    bridges = [a for a in range(looped.num_arcs) if looped.ilabel[a] == 0]
    assert [int(looped.next_state[a]) for a in bridges] == [1, 1]


def test_second_helping_of_self_loops_is_refused(system):
    tree, model = system
    looped = add_self_loops(phone_graph(model, tree), model)
    with pytest.raises(UserError, match="self-loops already"):
        add_self_loops(looped, model)


def test_labels_of_another_model_are_refused(system):
    _, model = system
    label = model.num_transition_ids + 1
    graph = Graph.from_arrays(0, [0, 1, 1], [label], [0], [0.0], [1], [np.inf, 0.0])
    with pytest.raises(UserError, match="no transition-ids"):
        add_self_loops(graph, model)
    assert add_self_loops(graph, model, disambig_tids=[label]).num_states == 2


def test_unknown_phone_is_refused(system):
    tree, model = system
    with pytest.raises(UserError, match="phone 9"):
        h_transducer([[], [9]], tree, model)
