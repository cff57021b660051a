"""Compact lattices by hand: making, converting, refusing."""

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.lattice import CompactLattice, Lattice, Strings

INF = [np.inf, np.inf]


def strings(*rows):
    begin = np.cumsum([0, *map(len, rows)])
    return Strings(begin, np.array([i for row in rows for i in row], np.int32))


def make(arcs, rows, finals, final_rows=None, **options):
    costs = np.arange(2 * len(arcs), dtype=np.float32).reshape(-1, 2)
    return CompactLattice.from_arcs(
        np.array(arcs, np.int32).reshape(-1, 3),
        costs,
        strings(*rows),
        np.array(finals, np.float32).reshape(-1, 2),
        None if final_rows is None else strings(*final_rows),
        **options,
    )


def test_states_are_sorted_and_the_unreachable_dropped():
    #  3 -7:"1 2"-> 0 -8:"3"-> 2 (final), 1 -9:""-> 2 unreachable
    lattice = make(
        [(0, 2, 8), (1, 2, 9), (3, 0, 7)],
        [[3], [], [1, 2]],
        [INF, INF, [0.5, 0], INF],
        start=3,
    )
    assert lattice.word.tolist() == [7, 8]
    assert lattice.graph_cost.tolist() == [4, 0]
    assert [lattice.arc_string(a).tolist() for a in (0, 1)] == [[1, 2], [3]]
    assert lattice.frame.tolist() == [0, 2, 3]
    assert (lattice.num_frames, lattice.depth) == (3, 1.0)
    assert lattice.is_final.tolist() == [False, False, True]


def test_strings_of_final_states_are_spread_to_a_new_state():
    #  0 -7:"1 2"-> 1 (final, string "3 4"), 0 -8:""-> 2 -0:"5 6 7 8"-> 3 (final)
    lattice = make(
        [(0, 1, 7), (0, 2, 8), (2, 3, 0)],
        [[1, 2], [], [5, 6, 7, 8]],
        [INF, [0.5, 0.25], INF, [0, 0]],
        [[], [3, 4], [], []],
    )
    assert lattice.state_string(1).tolist() == [3, 4]
    raw = lattice.to_lattice()
    assert raw.num_states == 4 + 1 + 2 + 3
    assert raw.num_arcs == 2 + 2 + 1 + 4
    assert raw.num_frames == 4
    assert sorted(raw.transition_id.tolist()) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert raw.frame.max() == 4
    assert np.isfinite(raw.final_graph_cost).sum() == 2
    (start,) = np.flatnonzero(raw.transition_id == 3)
    assert (raw.graph_cost[start], raw.acoustic_cost[start]) == (0.5, 0.25)
    again = raw.to_compact()
    assert (again.num_states, again.num_arcs) == (3, 2)  # no choice but at the start
    assert len(again.final_string) == 0


def test_dead_ends_are_removed():
    lattice = make(
        [(0, 1, 7), (0, 2, 8), (2, 3, 8)],
        [[1], [1], [1]],
        [INF, [0, 0], INF, INF],
    )
    kept = lattice.connected()
    assert (kept.num_states, kept.word.tolist()) == (2, [7])
    assert kept.connected() is kept


def test_a_cycle_is_refused():
    with pytest.raises(UserError, match="a lattice with a cycle"):
        make([(0, 1, 7), (1, 0, 7)], [[1], [1]], [INF, [0, 0]])


@pytest.mark.parametrize(
    ("rows", "final_rows"), [([[1], [1, 2]], None), ([[1], [1]], [[], [5], []])]
)
def test_uneven_paths_are_refused(rows, final_rows):
    with pytest.raises(UserError, match="different numbers of frames"):
        make([(0, 1, 7), (0, 2, 7)], rows, [INF, [0, 0], [0, 0]], final_rows)


def test_no_states():
    lattice = make([], [], [])
    assert (lattice.num_states, lattice.num_frames) == (0, 0)
    assert lattice.to_lattice().num_states == 0
    assert lattice.to_lattice().to_compact().num_arcs == 0


def one_frame(words, finals):
    arcs = np.array([(0, 1, 5, word) for word in words], np.int32).reshape(-1, 4)
    costs = np.array([(1, 2 - 0.25 * k) for k in range(len(words))], np.float32)
    return Lattice.from_arcs(arcs, costs.reshape(-1, 2), np.array(finals, np.float32))


def test_one_frame_is_determinized():
    result = determinize(one_frame([7, 8, 7, 0], [INF, [0.5, 0]]), beam=9.0)
    assert result.word.tolist() == [7, 8]
    assert result.acoustic_cost.tolist() == [1.5, 1.75]
    assert result.is_final.tolist() == [True, True]  # no word at all is cheapest
    assert result.state_string(0).tolist() == [5]
    assert (result.final_graph_cost[0], result.final_acoustic_cost[0]) == (1.5, 1.25)


def test_no_path_cannot_be_determinized():
    for lattice in (one_frame([7], [INF, INF]), make([], [], [])):
        with pytest.raises(UserError, match="without a path to a final state"):
            determinize(lattice, beam=9.0)


@pytest.mark.parametrize("bad", [{"beam": 0.0}, {"beam": 1.0, "acoustic_scale": 0.0}])
def test_settings_that_mean_nothing_are_refused(bad):
    with pytest.raises(ValueError, match="must be above 0"):
        determinize(one_frame([7], [INF, [0, 0]]), **bad)
    with pytest.raises(ValueError, match="takes a transition model"):
        determinize(one_frame([7], [INF, [0, 0]]), beam=1.0, on_words=False)
