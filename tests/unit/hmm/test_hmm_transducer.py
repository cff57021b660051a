"""H and self-loops for two phones: 1 with three states, 2 (silence) with five."""

import kaldifst
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.graphs import paths
from reference.training_graph import h_transducer

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.hmm.topology import Topology
from latflow.hmm.transducer import (
    HmmCache,
    add_self_loops,
    compose_hmms,
)
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency


@pytest.fixture(scope="module")
def system():
    topology = Topology.standard([1], [2])
    tree = ContextDependency.monophone([[1], [2]], topology.pdf_class_counts())
    return tree, TransitionModel.from_tree(tree, topology)


def chain_of(*labels):
    """A graph of one path with these labels on both sides."""
    return Graph.from_fst(kaldifst.make_linear_acceptor(list(labels)))


def test_a_phone_becomes_its_transition_ids(system):
    tree, model = system
    cache = HmmCache(tree, model)
    graph, symbols = compose_hmms(chain_of(1, 2), [[], [1], [-87]], cache)
    assert symbols == [model.num_transition_ids + 1]
    (((*ids, symbol), out),) = paths(graph)
    assert (symbol, out) == (symbols[0], (1, 2))
    assert [int(model.hmm_state[i]) for i in ids] == [0, 1, 2]
    assert not model.is_self_loop[ids].any()
    assert paths(graph)[(*ids, symbol), out] == pytest.approx(0.0, abs=1e-6)


def test_silence_has_a_way_through_each_inner_state(system):
    tree, model = system
    graph, _ = compose_hmms(chain_of(1), [[], [2]], HmmCache(tree, model))
    # An epsilon arc into the HMM, whose first state has a choice of three.
    begin = graph.arc_begin
    assert (begin[1], int(graph.ilabel[0]), int(graph.olabel[0])) == (1, 0, 1)
    first = int(graph.next_state[0])
    leaving = graph.ilabel[begin[first] : begin[first + 1]]
    assert model.next_state[leaving].tolist() == [1, 2, 3]
    np.testing.assert_allclose(
        graph.weight[begin[first] : begin[first + 1]], np.log(3), atol=1e-6
    )


def test_arcs_of_one_hmm_and_target_share_it(system):
    tree, model = system
    rows = [(1, 5, 0.5, 1), (1, 6, 0.25, 1), (1, 7, 0.0, 2), (0, 0, 0.0, 2)]
    final = np.array([np.inf, np.inf, 0.0], np.float32)
    lg = Graph.from_arc_list(0, np.array([0, 0, 0, 1]), np.array(rows, ARC), final)
    graph, _ = compose_hmms(lg, [[], [1]], HmmCache(tree, model))
    assert graph.num_states == 3 + 2 * 2
    assert graph.next_state[0] == graph.next_state[1] != graph.next_state[2]
    assert sorted({out for _, out in paths(graph)}) == [(5,), (6,), (7,)]


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.floats(0, 4)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_composition_is_that_of_openfst(rows):
    topology = Topology.standard([1, 2], [])  # the HMM of silence has cycles
    tree = ContextDependency.monophone([[1], [2]], topology.pdf_class_counts())
    cache = HmmCache(tree, TransitionModel.from_tree(tree, topology))
    sources = np.array([row[0] for row in rows])
    # Acyclic: arcs lead to a later state; labels are epsilon, phones 1, 2, a symbol.
    arcs = np.array([(i, o, c, s + 1 + o) for s, i, o, c in rows], ARC)
    final = np.full(7, np.inf, np.float32)
    final[3:] = 0.5
    lg, windows = Graph.from_arc_list(0, sources, arcs, final), [[], [1], [2], [-87]]
    graph, symbols = compose_hmms(lg, windows, cache)
    h, wanted = h_transducer(windows, cache)
    fst = lg.to_fst()
    kaldifst.arcsort(fst, "ilabel")
    assert symbols == wanted
    slow = Graph.from_fst(kaldifst.StdVectorFst(kaldifst.compose(h, fst)))
    assert paths(graph) == pytest.approx(paths(slow), abs=1e-5)


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
    with pytest.raises(UserError, match="not transition-ids"):
        add_self_loops(graph, model)
    assert add_self_loops(graph, model, disambig_tids=[label]).num_states == 2


def test_unknown_phone_is_refused(system):
    tree, model = system
    with pytest.raises(UserError, match="phone 9"):
        compose_hmms(chain_of(1), [[], [9]], HmmCache(tree, model))
