"""Epsilon closure: the best path from each word to each that may follow.

Determinization on words sees of a lattice where a label may begin: its *begin states*
(the start, and those that an arc with a label enters) and its *end states* (those that
an arc with a label leaves, and the final ones). From a begin state there is one best
path without labels to each end state. These paths are found once, for all begin states
together, as tokens that walk through the states in order.

A token is better than another of its begin state if its cost is lower; of equal costs,
if its graph cost is lower; of these, if its string is the higher one at the first
difference. This is Kaldi's order of `CompactLatticeWeight`.

Source: Kaldi `lat/determinize-lattice-pruned.cc` (`EpsilonClosure`,
`ComputeBackwardWeight`), which follows the closure of each set of states again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.jit import njit
from latflow.lattice.determinize.string_repository import (
    Number,
    compare_strings,
    concatenated,
    mix_all,
    powers_of_base,
)
from latflow.lattice.kernels import arc_offsets
from latflow.lattice.lattice import Lattice

_TOKEN_BYTES = 36
_ONLY_EMPTY = np.array([[0, -1, 0]], np.int32)


class Closures(NamedTuple):
    """A lattice as its end states see it; B begin states, C paths, W arcs, N tokens.

    Attributes:
        close_begin: int64[B + 1], paths of each begin state; the first is the start.
        close_end: int64[C], end states, ascending for each begin state.
        close_token: int64[C], the token that stands there.
        out_begin: int64[S + 1], arcs with a label of each state.
        out_label: int64[W].
        out_target: int64[W], number of the begin state that the arc enters.
        out_token: int64[W], a token with the arc's transition-id; -1 if it has none.
        out_cost: float64[W, 2], graph and acoustic.
        token_link: int32[N, 3]: previous, transition-id, number of the begin state.
        token_cost: float64[N, 2], from the begin state.
        token_print: uint64[N].
        backward: float64[B], least cost from the begin states to the end.
        frame: int64[S], frames from the start to each state.
        num_ends: number of end states.
    """

    close_begin: np.ndarray
    close_end: np.ndarray
    close_token: np.ndarray
    out_begin: np.ndarray
    out_label: np.ndarray
    out_target: np.ndarray
    out_token: np.ndarray
    out_cost: np.ndarray
    token_link: np.ndarray
    token_cost: np.ndarray
    token_print: np.ndarray
    backward: np.ndarray
    frame: np.ndarray
    num_ends: int


@njit(cache=True, nogil=True)
def cost_order(
    graph: float, acoustic: float, other: float, other_acoustic: float
) -> int:
    """Compare costs of two paths: -1 if the first is better, 0 if they tie, else 1."""
    total, other_total = graph + acoustic, other + other_acoustic
    if total != other_total:
        return -1 if total < other_total else 1
    return int(graph > other) - int(graph < other)


def resized(table: np.ndarray, size: int) -> np.ndarray:
    """Return a copy of a table with `size` rows, those behind the old ones unset."""
    larger = np.empty((size, *table.shape[1:]), table.dtype)
    larger[: len(table)] = table
    return larger


def epsilon_closures(
    lattice: Lattice,
    scaled_costs: tuple[np.ndarray, np.ndarray],
    backward: np.ndarray,
    is_cheap: np.ndarray,
    limits: tuple[int, int],
) -> Closures | None:
    """Find the paths between words in the part of a lattice that cheap paths take.

    Args:
        lattice: its words are the labels.
        scaled_costs: graph and acoustic costs of arcs, float64[A, 2], and of states,
            float64[S, 2]; inf where a state is not final.
        backward: float64[S], cost of the best path from each state to the end.
        is_cheap: bool[A]; other arcs are left out.
        limits: memory that the tokens may take, and moves of tokens over arcs.

    Returns:
        The paths; None if it would take more.
    """
    costs, final_costs = scaled_costs
    source, target = lattice.source(), lattice.next_state
    label, num_states = lattice.word, lattice.num_states
    labelled = np.flatnonzero((label != 0) & is_cheap)
    begin_state = np.unique(np.append(target[labelled], 0))
    number = np.full(num_states, -1)
    number[begin_state] = np.arange(len(begin_state))
    plain = np.flatnonzero((label == 0) & is_cheap)
    plain = plain[np.argsort(target[plain], kind="stable")]
    incoming = (
        arc_offsets(target[plain], num_states),
        source[plain],
        lattice.transition_id[plain],
        costs[plain],
    )
    ids = lattice.transition_id[labelled]
    tokens = _send_tokens(incoming, number, ids, limits)
    if tokens is None:
        return None
    token_begin, token_link, token_cost, token_print = tokens
    is_end = np.isfinite(final_costs.sum(axis=1))
    is_end[source[labelled]] = True
    ends = np.flatnonzero(is_end)
    counts = np.diff(token_begin)[ends]
    shift = token_begin[:-1][ends] - np.cumsum(counts) + counts
    close_token = np.repeat(shift, counts) + np.arange(counts.sum())
    by_begin = np.argsort(token_link[close_token, 2], kind="stable")
    close_token = close_token[by_begin]
    return Closures(
        close_begin=arc_offsets(token_link[close_token, 2], len(begin_state)),
        close_end=np.repeat(ends, counts)[by_begin],
        close_token=close_token,
        out_begin=arc_offsets(source[labelled], num_states),
        out_label=label[labelled].astype(np.int64),
        out_target=number[target[labelled]],
        out_token=np.where(ids != 0, np.arange(len(ids)), -1),
        out_cost=costs[labelled],
        token_link=token_link,
        token_cost=token_cost,
        token_print=token_print,
        backward=backward[begin_state],
        frame=lattice.frame.astype(np.int64),
        num_ends=len(ends),
    )


def _send_tokens(
    incoming: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    number: np.ndarray,
    single: np.ndarray,
    limits: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Send a token from each begin state over the arcs without labels.

    Args:
        incoming: of these arcs by the state they enter: offsets int64[S + 1]; sources,
            transition-ids, costs.
        number: int64[S], numbers of the begin states, -1 for other states.
        single: int32, symbols that get a token each in front of all others.
        limits: memory that the tokens may take, and moves of tokens over arcs.

    Returns:
        Offsets int64[S + 1] of the tokens at each state; links, costs and fingerprints
        of the tokens. None if they would take more.
    """
    num_states, (max_bytes, max_moves) = len(number), limits
    begin = np.zeros(num_states + 1, np.int64)
    prints, base = mix_all(incoming[2]), powers_of_base(2)[1]
    slot, moves = np.full(num_states, -1), np.zeros(1, np.int64)
    most = max(max_bytes // _TOKEN_BYTES, len(single) + 1)
    size = len(single) + 2 * num_states + 64 * len(incoming[1])  # mostly untouched
    size = min(size, most)
    link, cost = np.empty((size, 3), np.int32), np.empty((size, 2))
    token_print = np.empty(size, np.uint64)
    begin[0] = len(single)
    link[: len(single)] = [-1, 0, 0]
    link[: len(single), 1] = single
    token_print[: len(single)] = mix_all(single)
    state = 0
    while True:
        tables = (begin, link, cost, token_print, slot, moves)
        bounds = (state, max_moves, base)
        state = _walk(incoming, prints, number, tables, _ONLY_EMPTY, bounds)
        used = begin[state]
        if state == num_states:
            return begin, link[:used], cost[:used], token_print[:used]
        if len(link) == most or moves[0] > max_moves:
            return None
        size = min(2 * len(link), most)
        link, cost = resized(link[:used], size), resized(cost[:used], size)
        token_print = resized(token_print[:used], size)


@njit(cache=True, nogil=True)
def _walk(
    incoming: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    prints: np.ndarray,
    number: np.ndarray,
    tables: tuple[
        np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray
    ],
    only_empty: np.ndarray,
    bounds: tuple[Number, Number, Number],
) -> Number:
    """Bring the tokens to one state after the other while they fit.

    Args:
        incoming: as for `_send_tokens`.
        prints: uint64, fingerprints of the arcs' transition-ids.
        number: as for `_send_tokens`.
        tables: offsets of the tokens at each state; links, costs and fingerprints;
            int64[S], the token of each begin state that was last written; int64[1],
            moves so far.
        only_empty: a table of strings that holds the empty one.
        bounds: the state to continue with; the most moves; base of the fingerprints.

    Returns:
        The state for whose tokens there is no capacity, or that would come after too
        many moves; or S.
    """
    arcs, source, symbols, costs = incoming
    begin, link, cost, token_print, slot, moves = tables
    state, max_moves, base = bounds
    while (
        state < len(number)
        and moves[0] <= max_moves
        and _fits(incoming, begin, state, len(link))
    ):
        first = used = begin[state]
        if number[state] >= 0:
            link[used, 0], link[used, 1], link[used, 2] = -1, 0, number[state]
            cost[used, 0] = cost[used, 1] = 0.0
            token_print[used] = 0
            slot[number[state]] = used
            used += 1
        for k in range(arcs[state], arcs[state + 1]):
            moves[0] += begin[source[k] + 1] - begin[source[k]]
            for token in range(begin[source[k]], begin[source[k] + 1]):
                graph = cost[token, 0] + costs[k, 0]
                acoustic = cost[token, 1] + costs[k, 1]
                to = slot[link[token, 2]]
                if to < first:
                    to = used
                    slot[link[token, 2]] = to
                    used += 1
                else:
                    tied_with = float(cost[to, 0]), float(cost[to, 1])
                    order = cost_order(graph, acoustic, *tied_with)
                    if order == 0:
                        order = _tied(link, only_empty, (token, symbols[k]), to, used)
                    if order > 0:
                        continue
                link[to, 0], link[to, 1] = token, symbols[k]
                link[to, 2] = link[token, 2]
                cost[to, 0], cost[to, 1] = graph, acoustic
                token_print[to] = token_print[token]
                if symbols[k] != 0:
                    token_print[to] = concatenated(token_print[token], prints[k], base)
        begin[state + 1] = used
        state += 1
    return state


@njit(cache=True, nogil=True)
def _fits(
    incoming: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    begin: np.ndarray,
    state: Number,
    size: Number,
) -> bool:
    """Return whether the tokens of a state surely fit into tables of this size."""
    arcs, source, _, _ = incoming
    needed = begin[state] + 2
    for k in range(arcs[state], arcs[state + 1]):
        needed += begin[source[k] + 1] - begin[source[k]]
    return needed <= size


@njit(cache=True, nogil=True)
def _tied(
    link: np.ndarray,
    only_empty: np.ndarray,
    move: tuple[Number, Number],
    other: Number,
    row: Number,
) -> Number:
    """Compare a token that is moved on with another; -1 if its string is better.

    Args:
        link: the tokens.
        only_empty: a table of strings that holds the empty one.
        move: the token before the move, the symbol of the move.
        other: the token that it is compared with.
        row: a free row.
    """
    link[row, 0], link[row, 1] = move
    order, _ = compare_strings(link, only_empty, (0, row), (0, other))
    return -1 if order > 0 else 1
