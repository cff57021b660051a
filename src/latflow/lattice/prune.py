"""Pruning: leave out what no good path needs; and how deep a lattice is.

An arc stays if the best path over it costs at most `beam` more than the best path of
all, costs being

    lm_scale * graph cost + acoustic_scale * acoustic cost.

Public: `prune`, `depth_per_frame`.

Source: Kaldi `lat/lattice-functions.cc` (`PruneLattice`,
`CompactLatticeDepthPerFrame`), `latbin/lattice-prune.cc`,
`latbin/lattice-depth-per-frame.cc`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.lattice.compact import CompactLattice, Strings
from latflow.lattice.forward_backward import best_ways
from latflow.lattice.lattice import Lattice

Kind = TypeVar("Kind", Lattice, CompactLattice)


def prune(
    lattice: Kind, beam: float, *, lm_scale: float = 1.0, acoustic_scale: float = 1.0
) -> Kind:
    """Leave out arcs, states and ends that only paths outside the beam take.

    Args:
        lattice: raw or compact, with a path to a final state.
        beam: above 0, on scaled costs; inf leaves out impossible arcs and dead ends.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Returns:
        A lattice whose states and arcs are in the same order; costs are as they were
        (Kaldi's program scales them and back, which moves their last digits).

    Raises:
        UserError: no path leads to a final state, a cost is NaN or -inf, or the beam is
            not above 0.
    """
    if not beam > 0.0:
        raise UserError(f"a beam of {beam}", remedy="set the beam above 0")
    ways = best_ways(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    is_kept, is_end = _within(
        lattice.arc_begin,
        lattice.next_state,
        *ways,
        min(ways.best[-1] + beam, np.finfo(np.float64).max),
    )
    is_needed = _connect(lattice.arc_begin, lattice.next_state, is_kept, is_end)
    return _selected(lattice, is_needed, is_kept, is_end)


def depth_per_frame(lattice: Lattice | CompactLattice) -> np.ndarray:
    """Count the arcs that cross each frame, int32[T]; their mean is `lattice.depth`.

    Args:
        lattice: raw (arcs with a transition-id count) or compact (an arc counts for
            each frame of its string, as do strings of final states).

    Source: Kaldi `lat/lattice-functions.cc` (`CompactLatticeDepthPerFrame`).
    """
    num_frames = lattice.num_frames
    if isinstance(lattice, Lattice):
        frames = lattice.frame[lattice.source()[lattice.transition_id != 0]]
        return np.bincount(frames, minlength=num_frames)[:num_frames].astype(np.int32)
    lengths = np.diff(lattice.string_begin), np.diff(lattice.final_string_begin)
    start = np.concatenate([lattice.frame[lattice.source()], lattice.frame])
    stop = start + np.concatenate(lengths)
    size = max(num_frames, int(stop.max(initial=0))) + 1
    change = np.bincount(start, minlength=size) - np.bincount(stop, minlength=size)
    return np.cumsum(change)[:num_frames].astype(np.int32)


@njit(cache=True, nogil=True)
def _within(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    arc_cost: np.ndarray,
    final_cost: np.ndarray,
    best: np.ndarray,
    cutoff: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Tell which arcs and which ends have a path over them within the cutoff.

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        arc_cost: float64[A].
        final_cost: float64[S].
        best: float64[S + 1], cost of the best way to each state.
        cutoff: greatest cost of a path.

    Returns:
        (bool[A], bool[S]).
    """
    is_kept, is_end = (
        np.zeros(len(arc_cost), np.bool_),
        np.zeros(len(best) - 1, np.bool_),
    )
    to_end = final_cost.copy()
    for s in range(len(to_end) - 1, -1, -1):
        is_end[s] = best[s] + final_cost[s] <= cutoff
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            rest = arc_cost[arc] + to_end[next_state[arc]]
            to_end[s] = min(to_end[s], rest)
            is_kept[arc] = best[s] + rest <= cutoff
    return is_kept, is_end


@njit(cache=True, nogil=True)
def _connect(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    is_kept: np.ndarray,
    is_end: np.ndarray,
) -> np.ndarray:
    """Keep what lies on a whole path of kept arcs (OpenFst's `Connect`), bool[S].

    Rounding may part a path whose cost is the cutoff; what is left of it goes.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        is_kept: bool[A]; arcs that lie on no whole path are unset.
        is_end: bool[S]; likewise.
    """
    num_states = len(is_end)
    is_reached = np.zeros(num_states, np.bool_)
    is_reached[0] = True
    for s in range(num_states):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            is_kept[arc] &= is_reached[s]
            is_reached[next_state[arc]] |= is_kept[arc]
        is_end[s] &= is_reached[s]
    is_needed = is_end.copy()
    for s in range(num_states - 1, -1, -1):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            is_kept[arc] &= is_needed[next_state[arc]]
            is_needed[s] |= is_kept[arc]
    return is_needed


def _selected(
    lattice: Kind, is_needed: np.ndarray, is_kept: np.ndarray, is_end: np.ndarray
) -> Kind:
    """Take some states and arcs of a lattice; states that are no ends lose final costs.

    Args:
        lattice: raw or compact.
        is_needed: bool[S], the start among them.
        is_kept: bool[A], arcs between needed states.
        is_end: bool[S].
    """
    position = (np.cumsum(is_needed) - 1).astype(np.int32)
    kept_before = np.concatenate([[0], np.cumsum(is_kept)]).astype(np.int64)
    begin = kept_before[lattice.arc_begin]
    final = np.where(
        is_end, (lattice.final_graph_cost, lattice.final_acoustic_cost), np.inf
    ).astype(np.float32)[:, is_needed]
    taken = {
        "arc_begin": np.append(begin[:-1][is_needed], begin[-1]),
        "next_state": position[lattice.next_state[is_kept]],
        "word": lattice.word[is_kept],
        "graph_cost": lattice.graph_cost[is_kept],
        "acoustic_cost": lattice.acoustic_cost[is_kept],
        "final_graph_cost": final[0],
        "final_acoustic_cost": final[1],
        "frame": lattice.frame[is_needed],
    }
    if isinstance(lattice, Lattice):
        return replace(lattice, **taken, transition_id=lattice.transition_id[is_kept])
    strings = _taken(lattice.string_begin, lattice.string, is_kept, is_kept)
    ends = _taken(lattice.final_string_begin, lattice.final_string, is_needed, is_end)
    return replace(
        lattice,
        **taken,
        string_begin=strings.begin,
        string=strings.ids,
        final_string_begin=ends.begin,
        final_string=ends.ids,
    )


def _taken(
    begin: np.ndarray, ids: np.ndarray, is_taken: np.ndarray, is_filled: np.ndarray
) -> Strings:
    """Take some of N strings, and make empty those that are not to be filled.

    Args:
        begin: int64[N + 1].
        ids: int32[begin[N]].
        is_taken: bool[N].
        is_filled: bool[N].
    """
    lengths = np.diff(begin)
    kept = np.where(is_filled, lengths, 0)[is_taken]
    new_begin = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    return Strings(new_begin, ids[np.repeat(is_taken & is_filled, lengths)])
