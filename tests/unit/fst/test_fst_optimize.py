"""Pushing and local epsilon removal on graphs small enough to do by hand."""

import numpy as np
import pytest
from reference.graphs import paths

from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.fst.optimize import (
    push_special,
    remove_epsilons_locally,
    remove_input_symbols,
)


def make(num_states, rows, final):
    costs = np.full(num_states, np.inf, np.float32)
    for state, cost in final.items():
        costs[state] = cost
    sources = np.array([row[0] for row in rows])
    return Graph.from_arc_list(0, sources, np.array([r[1:] for r in rows], ARC), costs)


def test_two_arcs_in_a_row_become_one():
    graph = make(3, [(0, 1, 0, 0.5, 1), (1, 0, 2, 0.25, 2)], {2: 0.0})
    reduced = remove_epsilons_locally(graph)
    assert (reduced.num_states, reduced.num_arcs) == (2, 1)
    assert paths(reduced) == {((1,), (2,)): 0.75}


def test_arcs_with_two_labels_on_one_side_stay():
    graph = make(3, [(0, 1, 0, 0.5, 1), (1, 2, 0, 0.25, 2)], {2: 0.0})
    assert remove_epsilons_locally(graph).num_arcs == 2


def test_epsilon_into_a_final_state_makes_its_source_final():
    graph = make(3, [(0, 1, 1, 0.0, 1), (1, 0, 0, 0.5, 2)], {2: 0.25})
    reduced = remove_epsilons_locally(graph)
    assert reduced.num_states == 2
    assert paths(reduced) == {((1,), (1,)): 0.75}


def test_shares_stay_stochastic_when_part_of_a_state_moves():
    half = -np.log(0.5)
    # 0 -1:0-> 1, from where 0:2 (half) could join, and 3:3 (half) could not.
    rows = [(0, 1, 0, 0.0, 1), (1, 0, 2, half, 2), (1, 3, 3, half, 2)]
    reduced = remove_epsilons_locally(make(3, rows, {2: 0.0}))
    for state in range(reduced.num_states):
        arcs = slice(reduced.arc_begin[state], reduced.arc_begin[state + 1])
        total = np.exp(-reduced.weight[arcs]).sum() + np.exp(-reduced.final[state])
        assert total == pytest.approx(1.0, abs=1e-6)
    assert paths(reduced) == pytest.approx(
        {((1,), (2,)): half, ((1, 3), (3,)): half}, abs=1e-6
    )


def test_pushed_states_have_one_sum():
    rows = [(0, 1, 1, 0.1, 1), (0, 2, 2, 3.0, 2), (1, 3, 3, 5.0, 2), (2, 4, 4, 1.0, 0)]
    graph = make(3, rows, {2: 0.3})
    pushed = push_special(graph)
    sums = [
        np.exp(-pushed.weight[pushed.arc_begin[s] : pushed.arc_begin[s + 1]]).sum()
        + np.exp(-pushed.final[s])
        for s in range(3)
    ]
    assert np.log(max(sums) / min(sums)) < 1e-3


def test_pushing_a_chain_converges():
    rows = [(0, 2, 3, 3.0, 1), (1, 3, 1, 4.5, 2), (2, 1, 1, 0.5, 3)]
    pushed = push_special(make(4, rows, {3: 0.25}))
    (cost,) = paths(pushed).values()
    assert cost == pytest.approx(8.25, abs=1e-4)
    assert np.ptp([*pushed.weight, pushed.final[3]]) < 1e-2


def test_symbols_become_epsilon():
    graph = make(2, [(0, 7, 1, 0.0, 1), (0, 8, 1, 0.0, 1)], {1: 0.0})
    removed = remove_input_symbols(graph, [7, 9])
    assert removed.ilabel.tolist() == [0, 8]
    assert removed.num_input_epsilons.tolist() == [1, 0]
