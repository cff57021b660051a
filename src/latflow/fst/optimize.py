"""Reductions of decoding graphs: pushing, local epsilon removal, connection.

Weights are costs; sums are taken in the log semiring: a (+) b = -log(e^-a + e^-b).

Source: Kaldi `fstext/push-special.cc`, `fstext/remove-eps-local-inl.h`,
`fstext/fstext-utils-inl.h`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from latflow.fst.determinize import DELTA, Links, log_add, resized
from latflow.fst.graph import Graph, incoming, state_records
from latflow.jit import njit

log = logging.getLogger(__name__)

_MAX_ITERATIONS = 2000
_DELETED = -1  # as next_state
_NONE = -1  # as arc
_HEAD, _TAIL, _INTO, _OUT = 0, 1, 2, 3  # columns of a table of states


def push_special(graph: Graph, *, delta: float = DELTA) -> Graph:
    """Distribute weight so that the arcs of all states sum to the same total.

    With P[i, j] the summed probability of the arcs from i to j (final probabilities
    count as arcs to the start state), v the dominant eigenvector of P and v_i > 0, arc
    weights become p_ij v_j / v_i: each state's sum is then the eigenvalue. No path from
    the start to a final state changes its weight. Unlike ordinary pushing it never
    fails on back-off language models, whose total weight may be infinite.

    Args:
        graph: connected.
        delta: sums (in log) differ by no more than this.

    Source: Kaldi `PushSpecial`; Hannemann, Povey, Zweig, ICASSP 2013, "Combining
    forward and backward search in decoding", section 3.
    """
    if not graph.num_states:
        return graph
    probability = np.exp(-graph.weight.astype(np.float64))
    final = np.exp(-graph.final.astype(np.float64))
    vector, is_converged = _dominant_vector(
        graph.arc_begin, graph.next_state, probability, final, graph.start, delta
    )
    if not is_converged:
        log.warning("pushing of weights did not converge; costs are pushed in part")
    potential = -np.log(vector)
    arcs = np.array(graph.arcs)
    change = potential[graph.next_state] - potential[graph.sources()]
    arcs["weight"] = (graph.weight + change).astype(np.float32)
    states = np.array(graph.states)
    change = (potential[graph.start] - potential).astype(np.float32)
    states["final"] = graph.final + change
    return Graph(graph.start, states, arcs)


@njit(cache=True, nogil=True)
def _dominant_vector(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    probability: np.ndarray,
    final: np.ndarray,
    start: int,
    delta: float,
) -> tuple[np.ndarray, bool]:
    """Return the eigenvector by the power method on P + 0.1, and whether it converged.

    The 0.1 keeps chains, whose eigenvalues have all one magnitude, from oscillating.
    """
    num_states = len(final)
    vector = np.full(num_states, 1.0 / np.sqrt(num_states))
    sums = np.empty(num_states)
    for iteration in range(_MAX_ITERATIONS):
        for state in range(num_states):
            total = final[state] * vector[start]
            for arc in range(arc_begin[state], arc_begin[state + 1]):
                total += probability[arc] * vector[next_state[arc]]
            sums[state] = total
        if iteration % 5 == 1 and iteration > 1:  # as Kaldi: after 6, 11 ... updates
            ratio = sums / vector
            if np.log(ratio.max() / ratio.min()) <= delta:
                return vector, True
        updated = 0.1 * vector + sums
        vector = updated / np.sqrt((updated * updated).sum())
    return vector, False


def remove_input_symbols(graph: Graph, symbols: Sequence[int]) -> Graph:
    """Replace input symbols by epsilon.

    Source: Kaldi `RemoveSomeInputSymbols`.
    """
    arcs = np.array(graph.arcs)
    arcs["ilabel"][np.isin(arcs["ilabel"], list(symbols))] = 0
    states = state_records(graph.arc_begin, graph.final, arcs)
    return Graph(graph.start, states, arcs)


def remove_epsilons_locally(graph: Graph) -> Graph:
    """Join pairs of arcs, one of which is epsilon, where that never adds an arc.

    Two arcs in a row are joined if at most one of them has an input label and at most
    one an output label, and the state between them has one arc in or one arc out (being
    the start or final counts as one). Path weights stay the same in the tropical
    semiring; where only some of the arcs of a state move forward, costs are shifted so
    that sums of probabilities stay the same too.

    Args:
        graph: connected.

    Returns:
        The connected result; its states are numbered again.

    Source: Kaldi `RemoveEpsLocalSpecial`, the default of `fstrmepslocal`.
    """
    if not graph.num_states:
        return graph
    begin, final = graph.arc_begin, np.array(graph.final)
    has_arcs = np.diff(begin) > 0
    table = np.empty((graph.num_states, 4), np.int32)
    table[:, _HEAD] = np.where(has_arcs, begin[:-1], _NONE)
    table[:, _TAIL] = np.where(has_arcs, begin[1:] - 1, _NONE)
    table[:, _INTO] = np.bincount(graph.next_state, minlength=graph.num_states)
    table[graph.start, _INTO] += 1
    table[:, _OUT] = np.diff(begin) + np.isfinite(final)
    link = np.arange(1, graph.num_arcs + 1, dtype=np.int32)
    link[table[has_arcs, _TAIL]] = _NONE
    begin, arcs = _visit_all(np.array(graph.arcs), link, table, final)
    del link, table
    return connect(Graph(graph.start, state_records(begin, final, arcs), arcs))


@njit(cache=True, nogil=True)
def _visit_all(
    arcs: Links, link: np.ndarray, table: np.ndarray, final: np.ndarray
) -> tuple[np.ndarray, Links]:
    """Visit all arcs in turn, also those that are added on the way.

    Args:
        arcs: ARC[A].
        link: int32[A], the next arc of the same state, or -1.
        table: int32[S, 4]: first and last arc of a state, number of arcs in and out.
        final: float32[S]; changed.

    Returns:
        (arc_begin, int64[S + 1]; arcs) of what is left.
    """
    used = len(arcs)
    for state in range(len(table)):
        arc = table[state, _HEAD]
        while arc != _NONE:
            target = arcs[arc]["next_state"]
            if target not in (_DELETED, state):
                needed = used + table[target, _OUT]
                if needed > len(arcs):
                    size = needed + len(arcs) // 4
                    arcs, link = resized(arcs, size), resized(link, size)
                if table[target, _INTO] == 1 and table[target, _OUT] > 1:
                    used = _join_forward(state, arc, arcs, link, used, table, final)
                elif table[target, _OUT] == 1:
                    used = _join_single(state, arc, arcs, link, used, table, final)
            arc = link[arc]
    return _collect(arcs, link, table)


@njit(cache=True, nogil=True)
def _collect(
    arcs: Links, link: np.ndarray, table: np.ndarray
) -> tuple[np.ndarray, Links]:
    """Return (arc_begin; the arcs that are left, state after state)."""
    begin = np.zeros(len(table) + 1, np.int64)
    for state in range(len(table)):
        begin[state + 1] = begin[state]
        arc = table[state, _HEAD]
        while arc != _NONE:
            begin[state + 1] += arcs[arc]["next_state"] != _DELETED
            arc = link[arc]
    kept = np.empty(begin[-1], arcs.dtype)
    count = 0
    for state in range(len(table)):
        arc = table[state, _HEAD]
        while arc != _NONE:
            if arcs[arc]["next_state"] != _DELETED:
                kept[count] = arcs[arc]
                count += 1
            arc = link[arc]
    return begin, kept


@njit(cache=True, nogil=True)
def _can_join(arcs: np.ndarray, first: int, second: int) -> bool:
    """Return True if two arcs have together at most one label on each side."""
    return (arcs[first]["ilabel"] == 0 or arcs[second]["ilabel"] == 0) and (
        arcs[first]["olabel"] == 0 or arcs[second]["olabel"] == 0
    )


@njit(cache=True, nogil=True)
def _delete(state: int, arc: int, arcs: np.ndarray, table: np.ndarray) -> None:
    """Take an arc out of a state."""
    table[state, _OUT] -= 1
    table[arcs[arc]["next_state"], _INTO] -= 1
    arcs[arc]["next_state"] = _DELETED


@njit(cache=True, nogil=True)
def _append_joined(
    state: int,
    first: int,
    second: int,
    arcs: Links,
    link: np.ndarray,
    used: int,
    table: np.ndarray,
) -> int:
    """Add the joined arc at the end of a state's arcs; returns the new number used."""
    arcs[used]["ilabel"] = arcs[first]["ilabel"] or arcs[second]["ilabel"]
    arcs[used]["olabel"] = arcs[first]["olabel"] or arcs[second]["olabel"]
    arcs[used]["weight"] = arcs[first]["weight"] + arcs[second]["weight"]
    arcs[used]["next_state"] = arcs[second]["next_state"]
    link[used] = _NONE
    link[table[state, _TAIL]] = used
    table[state, _TAIL] = used
    table[state, _OUT] += 1
    table[arcs[used]["next_state"], _INTO] += 1
    return used + 1


@njit(cache=True, nogil=True)
def _join_final(
    state: int, arc: int, arcs: Links, table: np.ndarray, final: np.ndarray
) -> None:
    """Make a state final by way of an epsilon arc into a final state."""
    if final[state] == np.inf:
        table[state, _OUT] += 1
    cost = arcs[arc]["weight"] + final[arcs[arc]["next_state"]]
    final[state] = min(final[state], cost)


@njit(cache=True, nogil=True)
def _join_forward(
    state: int,
    arc: int,
    arcs: Links,
    link: np.ndarray,
    used: int,
    table: np.ndarray,
    final: np.ndarray,
) -> int:
    """Join an arc with what leaves its target, which nothing else enters.

    Where all of it can be joined the arc goes, else it keeps the share of the rest.
    """
    target = arcs[arc]["next_state"]
    removed = kept = np.inf
    following = table[target, _HEAD]
    while following != _NONE:
        if arcs[following]["next_state"] != _DELETED:
            if _can_join(arcs, arc, following):
                removed = log_add(removed, float(arcs[following]["weight"]))
                used = _append_joined(state, arc, following, arcs, link, used, table)
                _delete(target, following, arcs, table)
            else:
                kept = log_add(kept, float(arcs[following]["weight"]))
        following = int(link[following])
    if final[target] != np.inf:
        if arcs[arc]["ilabel"] == 0 and arcs[arc]["olabel"] == 0:
            removed = log_add(removed, float(final[target]))
            _join_final(state, arc, arcs, table, final)
            final[target] = np.inf
            table[target, _OUT] -= 1
        else:
            kept = log_add(kept, float(final[target]))
    if removed != np.inf and kept == np.inf:
        _delete(state, arc, arcs, table)
    elif removed != np.inf:
        _shift(arc, kept - log_add(removed, kept), arcs, link, table, final)
    return used


@njit(cache=True, nogil=True)
def _shift(
    arc: int,
    cost: float,
    arcs: Links,
    link: np.ndarray,
    table: np.ndarray,
    final: np.ndarray,
) -> None:
    """Move cost from what leaves an arc's target, which nothing else enters, to it."""
    target = arcs[arc]["next_state"]
    arcs[arc]["weight"] += cost
    following = table[target, _HEAD]
    while following != _NONE:
        if arcs[following]["next_state"] != _DELETED:
            arcs[following]["weight"] -= cost
        following = int(link[following])
    if final[target] != np.inf:
        final[target] -= cost


@njit(cache=True, nogil=True)
def _join_single(
    state: int,
    arc: int,
    arcs: Links,
    link: np.ndarray,
    used: int,
    table: np.ndarray,
    final: np.ndarray,
) -> int:
    """Join an arc with the only one that leaves its target, or with its being final."""
    target = arcs[arc]["next_state"]
    is_only_way = table[target, _INTO] == 1
    if final[target] != np.inf:
        if arcs[arc]["ilabel"] == 0 and arcs[arc]["olabel"] == 0:
            _join_final(state, arc, arcs, table, final)
            if is_only_way:
                final[target] = np.inf
                table[target, _OUT] -= 1
            _delete(state, arc, arcs, table)
        return used
    following = table[target, _HEAD]
    while arcs[following]["next_state"] == _DELETED:
        following = int(link[following])
    if _can_join(arcs, arc, following):
        used = _append_joined(state, arc, following, arcs, link, used, table)
        if is_only_way:
            _delete(target, following, arcs, table)
        _delete(state, arc, arcs, table)
    return used


def connect(graph: Graph) -> Graph:
    """Drop states that are on no path from the start to a final state.

    Returns:
        The others, in their order; the same graph if none is dropped.

    Source: OpenFst `Connect`.
    """
    if not graph.num_states:
        return graph
    begin, next_state = graph.arc_begin, graph.next_state
    is_useful = _is_useful(graph.start, begin, next_state, graph.final)
    if is_useful.all():
        return graph
    number = np.cumsum(is_useful, dtype=np.int32) - np.int32(1)
    begin, arcs = _induced(begin, graph.arcs, is_useful, number)
    start = int(number[graph.start]) if is_useful[graph.start] else -1
    return Graph(start, state_records(begin, graph.final[is_useful], arcs), arcs)


@njit(cache=True, nogil=True)
def _is_useful(
    start: int, arc_begin: np.ndarray, next_state: np.ndarray, final: np.ndarray
) -> np.ndarray:
    """Return whether a state is on a path from the start to a final one, bool[S]."""
    into_begin, into, source = incoming(arc_begin, next_state)
    is_reached = np.zeros(len(final), np.bool_)
    is_useful = np.zeros(len(final), np.bool_)
    queue = [np.int64(start)]
    is_reached[start] = True
    while len(queue) > 0:
        state = queue.pop()
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            if not is_reached[next_state[arc]]:
                is_reached[next_state[arc]] = True
                queue.append(np.int64(next_state[arc]))
    for state in range(len(final)):
        if is_reached[state] and final[state] != np.inf:
            is_useful[state] = True
            queue.append(np.int64(state))
    while len(queue) > 0:
        state = queue.pop()
        for n in range(into_begin[state], into_begin[state + 1]):
            before = source[into[n]]
            if is_reached[before] and not is_useful[before]:
                is_useful[before] = True
                queue.append(np.int64(before))
    return is_useful


@njit(cache=True, nogil=True)
def _induced(
    arc_begin: np.ndarray, arcs: Links, is_kept: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, Links]:
    """Return (arc_begin; arcs) between the states that are kept, with new numbers."""
    begin = np.zeros(is_kept.sum() + 1, np.int64)
    for state in range(len(is_kept)):
        if is_kept[state]:
            for n in range(arc_begin[state], arc_begin[state + 1]):
                begin[number[state] + 1] += is_kept[arcs[n]["next_state"]]
    begin = np.cumsum(begin)
    kept = np.empty(begin[-1], arcs.dtype)
    count = 0
    for state in range(len(is_kept)):
        if is_kept[state]:
            for n in range(arc_begin[state], arc_begin[state + 1]):
                if is_kept[arcs[n]["next_state"]]:
                    kept[count] = arcs[n]
                    kept[count]["next_state"] = number[arcs[n]["next_state"]]
                    count += 1
    return begin, kept
