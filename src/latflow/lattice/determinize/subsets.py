"""Subsets of lattice states, which are the states of a determinized lattice.

An *element* is a state with what its best path costs and spells more than the subset as
a whole: two costs and a string whose first `prefix` symbols all elements of the subset
share. Normalizing a subset takes the cost of its best element and the shared symbols
out. Two normalized subsets are the same if states and strings agree and costs do to
within `delta`.

Source: Kaldi `lat/determinize-lattice-pruned.cc` (`NormalizeSubset`, `SubsetKey`,
`SubsetEqual`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.jit import njit
from latflow.lattice.determinize.epsilon_closure import Closures, resized
from latflow.lattice.determinize.string_repository import (
    Number,
    concatenated,
    copy_piece,
    fingerprint,
    mix,
    seek,
    step,
)

ELEMENTS, STRINGS, TASKS, STATES, ARCS, ENTRIES, HEAP, WORK = range(8)
_POOL_OF = (
    *(ELEMENTS, ELEMENTS, ELEMENTS, STRINGS, STRINGS, TASKS, TASKS, STATES, STATES),
    *(STATES, ARCS, ARCS, ENTRIES, ENTRIES, ENTRIES, TASKS),
)  # what the rows of each table are


class Pools(NamedTuple):
    """Tables of a determinization; `used` says how many of their rows are taken.

    Attributes:
        element: int64[., 2], state and string.
        element_cost: float64[., 2], graph and acoustic, beyond those of the subset.
        element_print: uint64[.], fingerprint of the string beyond the shared part.
        string_link: int32[., 3], string_print uint64[.]: see `string_repository`.
        task: int64[., 4], an arc to be made: state, label, first and last element.
        task_cost: float64[.], cost of the best path through it.
        state: int64[., 3], states of the result: first and last element, prefix.
        state_cost: float64[.], least cost of a path there.
        state_key: uint64[.].
        arc: int64[., 9], arcs of the result: source, target (-1 for the final cost),
            label, two pieces of strings, each a string, its first and last symbol.
        arc_cost: float64[., 2].
        entry: int64[., 6], subsets before their closure: first and last element, state
            of the result, piece of the string on the path there.
        entry_cost: float64[., 2], costs on the path there.
        entry_key: uint64[.].
        heap: int64[.], numbers of tasks, the cheapest first.
        states_by_key, entries_by_key: int64[.], hash tables of rows plus 1, 0 if free.
        used: int64[8], how many elements, strings, ... there are; last, how much work
            was done: paths followed and symbols compared.
    """

    element: np.ndarray
    element_cost: np.ndarray
    element_print: np.ndarray
    string_link: np.ndarray
    string_print: np.ndarray
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
        """Return tables with the empty string and the start, which is element 0."""
        used = np.zeros(8, np.int64)
        used[ELEMENTS] = used[STRINGS] = 1
        string_link = np.array([[0, -1, 0]], np.int32)
        return cls(
            element=np.zeros((1, 2), np.int64),
            element_cost=np.zeros((1, 2)),
            element_print=np.zeros(1, np.uint64),
            string_link=string_link,
            string_print=np.zeros(1, np.uint64),
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

    def with_capacity(self, count: int) -> Pools:
        """Return the same tables with at least `count` free rows in each.

        A table that has fewer gets more than twice the rows that are taken.
        """
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
        _insert_all(grown.states_by_key, grown.state_key, self.used[STATES])
        _insert_all(grown.entries_by_key, grown.entry_key, self.used[ENTRIES])
        return grown

    @property
    def num_bytes(self) -> int:
        """Memory that all tables take."""
        return sum(table.nbytes for table in self)


@njit(cache=True, nogil=True)
def _insert_all(table: np.ndarray, keys: np.ndarray, count: Number) -> None:
    """Put the first rows into an empty hash table."""
    for row in range(count):
        insert(table, keys[row], row)


@njit(cache=True, nogil=True)
def insert(table: np.ndarray, key: Number, row: Number) -> None:
    """Put a row into a hash table that has a free slot."""
    at = np.int64(np.uint64(key) % np.uint64(len(table)))
    while table[at] != 0:
        at = at + 1 if at + 1 < len(table) else 0
    table[at] = row + 1


@njit(cache=True, nogil=True)
def find_subset(
    table: tuple[np.ndarray, np.ndarray, np.ndarray],
    pools: Pools,
    subset: tuple[Number, Number],
    key: Number,
    delta: float,
) -> Number:
    """Return the row whose subset is the same as this one, or -1.

    Args:
        table: hash table, keys of the rows, and the rows, which begin with the first
            and last element.
        pools: the elements.
        subset: first and last element.
        key: its key, as `normalize_subset` says.
        delta: the most that costs of the same may differ.
    """
    slots, keys, rows = table
    at = np.int64(np.uint64(key) % np.uint64(len(slots)))
    while slots[at] != 0:
        pools.used[WORK] += 1
        row = slots[at] - 1
        if keys[row] == np.uint64(key):
            other = (rows[row, 0], rows[row, 1])
            if _is_same(pools, subset, other, delta):
                return row
        at = at + 1 if at + 1 < len(slots) else 0
    return -1


@njit(cache=True, nogil=True)
def _is_same(
    pools: Pools,
    subset: tuple[Number, Number],
    other: tuple[Number, Number],
    delta: float,
) -> bool:
    """Return whether two normalized subsets differ in costs by at most `delta`."""
    if subset[1] - subset[0] != other[1] - other[0]:
        return False
    for k in range(subset[1] - subset[0]):
        pools.used[WORK] += 1
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
def normalize_subset(
    pools: Pools,
    graph: Closures,
    powers: np.ndarray,
    subset: tuple[Number, Number],
    prefix: Number,
) -> tuple[Number, Number, float, float]:
    """Take the best cost and the symbols that all elements share out of a subset.

    Args:
        pools: the elements; changed in place.
        graph: the tokens.
        powers: see `string_repository`.
        subset: first and last element.
        prefix: symbols that all elements are known to share.

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
    prefix, shared = _shared(pools, graph, powers, subset, prefix)
    key = subset_key(pools, powers, subset, prefix, shared)
    return key, prefix, best_graph, best_acoustic


@njit(cache=True, nogil=True)
def subset_key(
    pools: Pools,
    powers: np.ndarray,
    subset: tuple[Number, Number],
    prefix: Number,
    shared: Number,
) -> Number:
    """Note the fingerprints of a subset's strings, and make its key for a hash table.

    Args:
        pools: the elements; changed in place.
        powers: see `string_repository`.
        subset: first and last element.
        prefix: symbols that all strings share.
        shared: their fingerprint.
    """
    key = np.uint64(subset[1] - subset[0])
    for k in range(subset[0], subset[1]):
        string = pools.element[k, 1]
        power = powers[pools.string_link[string, 2] - prefix]
        before = concatenated(shared, np.uint64(0), power)
        pools.element_print[k] = pools.string_print[string] - before
        part = mix(pools.element[k, 0]) + pools.element_print[k]
        key = mix(key ^ part)
    return key


@njit(cache=True, nogil=True)
def _shared(
    pools: Pools,
    graph: Closures,
    powers: np.ndarray,
    subset: tuple[Number, Number],
    prefix: Number,
) -> tuple[Number, Number]:
    """Return how many symbols all strings of a subset share, and their fingerprint.

    The shared part of the strings so far is kept as a position in the first of them;
    positions go back together until their fingerprints agree.
    """
    token_link, strings = graph.token_link, pools.string_link
    prints = (graph.token_print, pools.string_print, powers)
    string = pools.element[subset[0], 1]
    length = np.int64(strings[string, 2])
    token = strings[string, 1]
    shared = pools.string_print[string]
    for k in range(subset[0] + 1, subset[1]):
        other = pools.element[k, 1]
        pools.used[WORK] += 1 + abs(strings[other, 2] - length)
        if strings[other, 2] < length:
            length = np.int64(strings[other, 2])
            string, token = seek(token_link, strings, string, length)
            shared = fingerprint(prints, strings, (string, token), length)
        other, other_token = seek(token_link, strings, other, length)
        while length > prefix and shared != fingerprint(
            prints, strings, (other, other_token), length
        ):
            _, string, token = step(token_link, strings, string, token)
            _, other, other_token = step(token_link, strings, other, other_token)
            length -= 1
            pools.used[WORK] += 1
            shared = fingerprint(prints, strings, (string, token), length)
    return length, shared


@njit(cache=True, nogil=True)
def arc_strings(graph: Closures, pools: Pools) -> tuple[np.ndarray, np.ndarray]:
    """Return transition-ids of the arcs: offsets int64[A + 1], and ids, int32."""
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
            at += copy_piece(graph.token_link, pools.string_link, piece, ids[at:])
    return begin, ids


@njit(cache=True, nogil=True)
def _is_sooner(pools: Pools, one: Number, two: Number) -> Number:
    """Return whether a task comes before another: the cheaper, or else the older."""
    if pools.task_cost[one] != pools.task_cost[two]:
        return pools.task_cost[one] < pools.task_cost[two]
    return one < two


@njit(cache=True, nogil=True)
def push(pools: Pools, task: Number) -> None:
    """Put a task on the heap."""
    heap, at = pools.heap, pools.used[HEAP]
    pools.used[HEAP] += 1
    while at > 0 and _is_sooner(pools, task, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = task


@njit(cache=True, nogil=True)
def pop(pools: Pools) -> None:
    """Take the first task off the heap."""
    heap = pools.heap
    pools.used[HEAP] -= 1
    size, at = pools.used[HEAP], 0
    task = heap[size]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_sooner(pools, heap[child + 1], heap[child]):
            child += 1
        if not _is_sooner(pools, heap[child], task):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = task
