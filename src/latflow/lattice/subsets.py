"""Subsets of lattice states, which are the states of a determinised lattice.

An *element* is a state with what its best way costs and spells more than the subset as
a whole: two costs and a rope whose first `depth` symbols all elements of the subset
share. Normalising a subset takes the cost of its best element and the shared symbols
out. Two normalised subsets are the same if states and strings agree and costs do to
within `delta`.

Public: `Pools`, `normalise`, `stamp`, `find`, `enter`, `arc_strings`, and the names of
the entries of `Pools.used`.

Source: Kaldi `lat/determinize-lattice-pruned.cc` (`NormalizeSubset`, `SubsetKey`,
`SubsetEqual`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from latflow.lattice.ropes import (
    Number,
    copy_part,
    fingerprint,
    joined,
    mix,
    seek,
    step,
)
from latflow.lattice.word_closures import WordGraph, resized

ELEMENTS, ROPES, TASKS, STATES, ARCS, ENTRIES, HEAP = range(7)
_POOL_OF = (
    *(ELEMENTS, ELEMENTS, ELEMENTS, ROPES, ROPES, TASKS, TASKS, STATES, STATES),
    *(STATES, ARCS, ARCS, ENTRIES, ENTRIES, ENTRIES, TASKS),
)  # what the rows of each table are


class Pools(NamedTuple):
    """Tables of a determinisation; `used` says how many of their rows are taken.

    Attributes:
        element: int64[., 2], state and rope.
        element_cost: float64[., 2], graph and acoustic, beyond those of the subset.
        element_print: uint64[.], fingerprint of the string beyond the shared part.
        rope_link: int32[., 3], rope_print uint64[.]: see `latflow.lattice.ropes`.
        task: int64[., 4], an arc to be made: state, label, first and last element.
        task_cost: float64[.], cost of the best path through it.
        state: int64[., 3], states of the result: first and last element, depth.
        state_cost: float64[.], least cost of a way there.
        state_key: uint64[.].
        arc: int64[., 9], arcs of the result: source, target (-1 for the final cost),
            label, two pieces of its string, each a rope and its first and last symbol.
        arc_cost: float64[., 2].
        entry: int64[., 6], subsets before their closure: first and last element, state
            of the result, piece of the string on the way there.
        entry_cost: float64[., 2], costs on the way there.
        entry_key: uint64[.].
        heap: int64[.], numbers of tasks, the cheapest first.
        states_by_key, entries_by_key: int64[.], hash tables of rows plus 1, 0 if free.
        used: int64[7], how many elements, ropes, ... there are.
    """

    element: np.ndarray
    element_cost: np.ndarray
    element_print: np.ndarray
    rope_link: np.ndarray
    rope_print: np.ndarray
    task: np.ndarray
    task_cost: np.ndarray
    state: np.ndarray
    state_cost: np.ndarray
    state_key: np.ndarray
    arc: np.ndarray
    arc_cost: np.ndarray
    entry: np.ndarray
    entry_cost: np.ndarray
    entry_key: np.ndarray
    heap: np.ndarray
    states_by_key: np.ndarray
    entries_by_key: np.ndarray
    used: np.ndarray

    @classmethod
    def empty(cls) -> Pools:
        """Tables that hold the empty rope and the start, which is the first element."""
        used = np.zeros(7, np.int64)
        used[ELEMENTS] = used[ROPES] = 1
        rope_link = np.array([[0, -1, 0]], np.int32)
        return cls(
            element=np.zeros((1, 2), np.int64),
            element_cost=np.zeros((1, 2)),
            element_print=np.zeros(1, np.uint64),
            rope_link=rope_link,
            rope_print=np.zeros(1, np.uint64),
            task=np.zeros((1, 4), np.int64),
            task_cost=np.zeros(1),
            state=np.zeros((1, 3), np.int64),
            state_cost=np.zeros(1),
            state_key=np.zeros(1, np.uint64),
            arc=np.zeros((1, 9), np.int64),
            arc_cost=np.zeros((1, 2)),
            entry=np.zeros((1, 6), np.int64),
            entry_cost=np.zeros((1, 2)),
            entry_key=np.zeros(1, np.uint64),
            heap=np.zeros(1, np.int64),
            states_by_key=np.zeros(2, np.int64),
            entries_by_key=np.zeros(2, np.int64),
            used=used,
        )

    def with_room(self, count: int) -> Pools:
        """The same tables, with at least `count` free rows in each."""
        tables = list(self)
        for number, pool in enumerate(_POOL_OF):
            rows = tables[number]
            if len(rows) < self.used[pool] + count:
                size = 2 * int(self.used[pool]) + count
                tables[number] = resized(rows, size)
        grown = Pools(*tables)
        if len(grown.state) == len(self.state) and len(grown.entry) == len(self.entry):
            return grown
        grown = grown._replace(
            states_by_key=np.zeros(2 * len(grown.state), np.int64),
            entries_by_key=np.zeros(2 * len(grown.entry), np.int64),
        )
        _enter_all(grown.states_by_key, grown.state_key, self.used[STATES])
        _enter_all(grown.entries_by_key, grown.entry_key, self.used[ENTRIES])
        return grown

    @property
    def num_bytes(self) -> int:
        """Memory that all tables take."""
        return sum(table.nbytes for table in self)


@njit(cache=True, nogil=True)
def _enter_all(table: np.ndarray, keys: np.ndarray, count: Number) -> None:
    """Put the first rows into an empty hash table."""
    for row in range(count):
        enter(table, keys[row], row)


@njit(cache=True, nogil=True)
def enter(table: np.ndarray, key: Number, row: Number) -> None:
    """Put a row into a hash table that has a free place."""
    at = np.int64(np.uint64(key) % np.uint64(len(table)))
    while table[at] != 0:
        at = at + 1 if at + 1 < len(table) else 0
    table[at] = row + 1


@njit(cache=True, nogil=True)
def find(
    table: tuple[np.ndarray, np.ndarray, np.ndarray],
    pools: Pools,
    subset: tuple[Number, Number],
    key: Number,
    delta: float,
) -> Number:
    """The row whose subset is the same as this one, or -1.

    Args:
        table: hash table, keys of the rows, and the rows, which begin with the first
            and last element.
        pools: the elements.
        subset: first and last element.
        key: its key, as `normalise` says.
        delta: the most that costs of the same may differ.
    """
    places, keys, rows = table
    at = np.int64(np.uint64(key) % np.uint64(len(places)))
    while places[at] != 0:
        row = places[at] - 1
        if keys[row] == np.uint64(key):
            other = (rows[row, 0], rows[row, 1])
            if _is_same(pools, subset, other, delta):
                return row
        at = at + 1 if at + 1 < len(places) else 0
    return -1


@njit(cache=True, nogil=True)
def _is_same(
    pools: Pools,
    subset: tuple[Number, Number],
    other: tuple[Number, Number],
    delta: float,
) -> bool:
    """Whether two normalised subsets are the same but for differences of cost."""
    if subset[1] - subset[0] != other[1] - other[0]:
        return False
    for k in range(subset[1] - subset[0]):
        one, two = subset[0] + k, other[0] + k
        if (
            pools.element[one, 0] != pools.element[two, 0]
            or pools.element_print[one] != pools.element_print[two]
            or abs(pools.element_cost[one, 0] - pools.element_cost[two, 0]) > delta
            or abs(pools.element_cost[one, 1] - pools.element_cost[two, 1]) > delta
        ):
            return False
    return True


@njit(cache=True, nogil=True)
def normalise(
    pools: Pools,
    graph: WordGraph,
    powers: np.ndarray,
    subset: tuple[Number, Number],
    depth: Number,
) -> tuple[Number, Number, float, float]:
    """Take the best cost and the symbols that all elements share out of a subset.

    Args:
        pools: the elements; changed in place.
        graph: the tokens.
        powers: see `latflow.lattice.ropes`.
        subset: first and last element.
        depth: symbols that all elements are known to share.

    Returns:
        Key for a hash table, symbols shared, graph and acoustic cost taken out.
    """
    first, last = subset
    cost = pools.element_cost
    best = first
    for k in range(first + 1, last):
        one, two = cost[k, 0] + cost[k, 1], cost[best, 0] + cost[best, 1]
        if one < two or (one == two and cost[k, 0] < cost[best, 0]):
            best = k
    best_graph, best_acoustic = cost[best, 0], cost[best, 1]
    for k in range(first, last):
        cost[k, 0] -= best_graph
        cost[k, 1] -= best_acoustic
    depth, shared = _shared(pools, graph, powers, subset, depth)
    key = stamp(pools, powers, subset, depth, shared)
    return key, depth, best_graph, best_acoustic


@njit(cache=True, nogil=True)
def stamp(
    pools: Pools,
    powers: np.ndarray,
    subset: tuple[Number, Number],
    depth: Number,
    shared: Number,
) -> Number:
    """Note the fingerprints of a subset's strings, and make its key for a hash table.

    Args:
        pools: the elements; changed in place.
        powers: see `latflow.lattice.ropes`.
        subset: first and last element.
        depth: symbols that all strings share.
        shared: their fingerprint.
    """
    key = np.uint64(subset[1] - subset[0])
    for k in range(subset[0], subset[1]):
        rope = pools.element[k, 1]
        power = powers[pools.rope_link[rope, 2] - depth]
        before = joined(shared, np.uint64(0), power)
        pools.element_print[k] = pools.rope_print[rope] - before
        part = mix(pools.element[k, 0]) + pools.element_print[k]
        key = mix(key ^ part)
    return key


@njit(cache=True, nogil=True)
def _shared(
    pools: Pools,
    graph: WordGraph,
    powers: np.ndarray,
    subset: tuple[Number, Number],
    depth: Number,
) -> tuple[Number, Number]:
    """How many symbols all strings of a subset share, and their fingerprint.

    The shared part of the strings so far is kept as a position in the first of them;
    positions go back together until their fingerprints agree.
    """
    token_link, ropes = graph.token_link, pools.rope_link
    prints = (graph.token_print, pools.rope_print, powers)
    rope = pools.element[subset[0], 1]
    length = np.int64(ropes[rope, 2])
    token = ropes[rope, 1]
    shared = pools.rope_print[rope]
    for k in range(subset[0] + 1, subset[1]):
        other = pools.element[k, 1]
        if ropes[other, 2] < length:
            length = np.int64(ropes[other, 2])
            rope, token = seek(token_link, ropes, rope, length)
            shared = fingerprint(prints, ropes, (rope, token), length)
        other, other_token = seek(token_link, ropes, other, length)
        while length > depth and shared != fingerprint(
            prints, ropes, (other, other_token), length
        ):
            _, rope, token = step(token_link, ropes, rope, token)
            _, other, other_token = step(token_link, ropes, other, other_token)
            length -= 1
            shared = fingerprint(prints, ropes, (rope, token), length)
    return length, shared


@njit(cache=True, nogil=True)
def arc_strings(graph: WordGraph, pools: Pools) -> tuple[np.ndarray, np.ndarray]:
    """Transition-ids of the arcs: offsets int64[A + 1], and the ids, int32."""
    arcs = pools.arc[: pools.used[ARCS]]
    begin = np.zeros(len(arcs) + 1, np.int64)
    for arc in range(len(arcs)):
        length = arcs[arc, 5] - arcs[arc, 4] + arcs[arc, 8] - arcs[arc, 7]
        begin[arc + 1] = begin[arc] + length
    ids = np.empty(begin[-1], np.int32)
    for arc in range(len(arcs)):
        at = begin[arc]
        for first in (3, 6):
            piece = arcs[arc, first : first + 3]
            at += copy_part(graph.token_link, pools.rope_link, piece, ids[at:])
    return begin, ids
