"""The decoding graph as the search walks it.

The arcs of each state are packed into 16-byte records, those that consume a frame
first and the epsilon arcs behind them, so that expanding a token touches one record of
its state and a few neighbouring cache lines. Made once from a graph and shared by all
threads; it never changes.

Public: `SearchGraph`, `make_search_graph`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit

from latflow.errors import UserError

ARC = np.dtype([("next", "i4"), ("pdf", "i4"), ("weight", "f4"), ("epsilons", "i4")])
Records = Any  # a structured array; in Numba its items have their fields as attributes
STATE = np.dtype([("begin", "i4"), ("middle", "i4"), ("end", "i4")])


class ArcArrays(Protocol):
    """What is needed of a `latflow.fst.graph.Graph`; see there."""

    start: int

    @property
    def arc_begin(self) -> np.ndarray:
        """int64[S + 1]."""
        ...

    @property
    def ilabel(self) -> np.ndarray:
        """int32[A]."""
        ...

    @property
    def olabel(self) -> np.ndarray:
        """int32[A]."""
        ...

    @property
    def weight(self) -> np.ndarray:
        """float32[A]."""
        ...

    @property
    def next_state(self) -> np.ndarray:
        """int32[A]."""
        ...

    @property
    def final(self) -> np.ndarray:
        """float32[S]."""
        ...


class SearchGraph(NamedTuple):
    """A graph with its arcs packed; S states, A arcs.

    Attributes:
        start: the start state.
        states: `STATE`[S]: arcs begin ... middle - 1 consume a frame, the arcs middle
            ... end - 1 are epsilon arcs.
        arcs: `ARC`[A]: target, pdf (-1 for epsilon), cost, epsilon arcs of the target.
        origin: int32[A], number of each arc in the graph.
        final: float32[S], final costs; inf where not final.
        has_epsilon_cycle: whether epsilon arcs form a cycle (of cost 0 or more).
    """

    start: int
    states: Records
    arcs: Records
    origin: np.ndarray
    final: np.ndarray
    has_epsilon_cycle: bool


def make_search_graph(graph: ArcArrays, tid_to_pdf: np.ndarray) -> SearchGraph:
    """Pack the arcs of a graph.

    Args:
        graph: a graph with transition-ids as input labels, 0 for epsilon.
        tid_to_pdf: int32[I + 1], pdf of each transition-id; entry 0 is not used.

    Raises:
        UserError: the graph has no start state, its input labels are no transition-ids
            of the model, or epsilon arcs form a cycle of negative cost.
    """
    num_states = len(graph.final)
    if not 0 <= graph.start < num_states:
        raise UserError(
            "the decoding graph is empty", remedy="make the graph again (target graph)"
        )
    labels = np.asarray(graph.ilabel)
    if len(labels) and (labels.min() < 0 or labels.max() >= len(tid_to_pdf)):
        raise UserError(
            f"the decoding graph has input labels {labels.min()} to {labels.max()}, "
            f"the model transition-ids 1 to {len(tid_to_pdf) - 1}",
            remedy="use a graph that was made with this model",
        )
    states, arcs, origin = _pack(
        np.asarray(graph.arc_begin),
        labels,
        np.asarray(graph.weight),
        np.asarray(graph.next_state),
        np.ascontiguousarray(tid_to_pdf, np.int32),
    )
    cycle = _epsilon_cycle(states, arcs)
    if cycle < 0:
        raise UserError(
            "the decoding graph has a cycle of epsilon arcs with negative cost",
            remedy="make the graph from a grammar without such cycles",
        )
    final = np.ascontiguousarray(graph.final, np.float32)
    return SearchGraph(int(graph.start), states, arcs, origin, final, cycle > 0)


def _pack(
    arc_begin: np.ndarray,
    ilabel: np.ndarray,
    weight: np.ndarray,
    next_state: np.ndarray,
    tid_to_pdf: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make the records, see `SearchGraph`."""
    states = np.empty(len(arc_begin) - 1, STATE)
    arcs = np.empty(len(ilabel), ARC)
    _fill_states(arc_begin, ilabel, states)
    order = _emitting_first(arc_begin, ilabel)
    arcs["next"] = next_state[order]
    arcs["epsilons"] = (states["end"] - states["middle"])[arcs["next"]]
    arcs["weight"] = weight[order]
    arcs["pdf"] = np.where(ilabel == 0, -1, tid_to_pdf[ilabel])[order]
    return states, arcs, order


@njit(cache=True, nogil=True)
def _fill_states(arc_begin: np.ndarray, ilabel: np.ndarray, states: Records) -> None:
    """Set the bounds of each state's two kinds of arcs."""
    for state in range(len(states)):
        begin, end = arc_begin[state], arc_begin[state + 1]
        emitting = 0
        for arc in range(begin, end):
            emitting += ilabel[arc] != 0
        states[state].begin = begin
        states[state].middle = begin + emitting
        states[state].end = end


@njit(cache=True, nogil=True)
def _emitting_first(arc_begin: np.ndarray, ilabel: np.ndarray) -> np.ndarray:
    """Arc numbers by state, those with an input label first, int32[A]."""
    order = np.empty(len(ilabel), np.int32)
    at = 0
    for state in range(len(arc_begin) - 1):
        for wants_epsilon in (False, True):
            for arc in range(arc_begin[state], arc_begin[state + 1]):
                if (ilabel[arc] == 0) == wants_epsilon:
                    order[at] = arc
                    at += 1
    return order


@njit(cache=True, nogil=True)
def _epsilon_cycle(states: Records, arcs: Records) -> int:
    """0 if the epsilon arcs form no cycle, 1 if they do, -1 if one has negative cost.

    States are taken away as long as no epsilon arc leads to them; what is left lies on
    or behind a cycle, and there the relaxation of Bellman and Ford must come to rest.
    """
    num_states = len(states)
    pending = np.zeros(num_states, np.int32)
    for state in range(num_states):
        for a in range(states[state].middle, states[state].end):
            pending[arcs[a].next] += 1
    stack = np.empty(num_states, np.int32)
    depth, left = 0, num_states
    for state in range(num_states):
        if pending[state] == 0:
            stack[depth] = state
            depth += 1
    while depth > 0:
        depth -= 1
        left -= 1
        state = stack[depth]
        for a in range(states[state].middle, states[state].end):
            pending[arcs[a].next] -= 1
            if pending[arcs[a].next] == 0:
                stack[depth] = arcs[a].next
                depth += 1
    if left == 0:
        return 0
    return 1 if _comes_to_rest(states, arcs, pending, left) else -1


@njit(cache=True, nogil=True)
def _comes_to_rest(
    states: Records, arcs: Records, pending: np.ndarray, rounds: int
) -> bool:
    """Whether relaxing the epsilon arcs among the pending states ends."""
    cost = np.zeros(len(states))
    for _ in range(rounds + 1):
        changed = False
        for state in range(len(states)):
            if pending[state] == 0:
                continue
            for a in range(states[state].middle, states[state].end):
                candidate = cost[state] + arcs[a].weight
                if candidate < cost[arcs[a].next] - 1e-5:
                    cost[arcs[a].next] = candidate
                    changed = True
        if not changed:
            return True
    return False
