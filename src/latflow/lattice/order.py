"""Order and time of lattice states.

Public: `arc_offsets`, `topological_order`, `state_frames`,
`states_with_end`, `heap_sort`.
"""

from __future__ import annotations

import numpy as np
from numba import njit


def arc_offsets(source: np.ndarray, num_states: int) -> np.ndarray:
    """Where the arcs of each state begin once sorted by source, int64[S + 1].

    Args:
        source: int[A], the state that each arc leaves.
        num_states: S.
    """
    counts = np.bincount(source, minlength=num_states)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@njit(cache=True, nogil=True)
def topological_order(
    arc_begin: np.ndarray, next_state: np.ndarray, start: int
) -> np.ndarray:
    """Sort the states that can be reached so that every arc leads forward.

    The order of the state numbers is kept where it is a topological one already: among
    the states that may come next, the lowest is taken.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        start: the first state.

    Returns:
        int32[R], the R reachable states in order; empty if the arcs form a cycle.
    """
    num_states = len(arc_begin) - 1
    pending = np.full(num_states, -1, np.int32)  # arcs in, from reachable states
    stack = np.empty(num_states, np.int32)
    if num_states == 0:
        return stack
    stack[0], depth, reachable = start, 1, 1
    pending[start] = 0
    while depth > 0:
        depth -= 1
        state = stack[depth]
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            target = next_state[arc]
            if pending[target] < 0:
                pending[target] = 0
                stack[depth] = target
                depth += 1
                reachable += 1
            pending[target] += 1
    if pending[start] > 0:
        return stack[:0]
    return _kahn(arc_begin, next_state, pending, start, reachable)


@njit(cache=True, nogil=True)
def _kahn(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    pending: np.ndarray,
    start: int,
    reachable: int,
) -> np.ndarray:
    """Take states whose incoming arcs are all done, lowest number first (a heap)."""
    order = np.empty(reachable, np.int32)
    heap = np.empty(reachable, np.int32)
    heap[0], size, done = start, 1, 0
    while size > 0:
        state = heap[0]
        size -= 1
        _sift_down(heap, size, heap[size])
        order[done] = state
        done += 1
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            target = next_state[arc]
            pending[target] -= 1
            if pending[target] == 0:
                _sift_up(heap, size, target)
                size += 1
    return order if done == reachable else order[:0]


@njit(cache=True, nogil=True)
def _sift_up(heap: np.ndarray, size: int, item: int) -> None:
    """Add an item to a heap of `size` items whose least comes first."""
    at = size
    while at > 0 and heap[(at - 1) // 2] > item:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = item


@njit(cache=True, nogil=True)
def _sift_down(heap: np.ndarray, size: int, item: int) -> None:
    """Put an item in the place of the least in a heap of `size` items."""
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@njit(cache=True, nogil=True)
def state_frames(
    arc_begin: np.ndarray, next_state: np.ndarray, arc_frames: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Count the frames consumed on the way to each state.

    Args:
        arc_begin: int64[S + 1], of a lattice whose states are in topological order.
        next_state: int32[A].
        arc_frames: int32[A], frames that each arc consumes.

    Returns:
        (int32[S]; whether all paths to each state agree).
    """
    num_states = len(arc_begin) - 1
    frame = np.full(num_states, -1, np.int32)
    if num_states:
        frame[0] = 0
    is_consistent = True
    for state in range(num_states):
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            then = frame[state] + arc_frames[arc]
            target = next_state[arc]
            if frame[target] < 0:
                frame[target] = then
            elif frame[target] != then:
                is_consistent = False
    return frame, is_consistent


@njit(cache=True, nogil=True)
def states_with_end(
    arc_begin: np.ndarray, next_state: np.ndarray, is_final: np.ndarray
) -> np.ndarray:
    """From which states a final one is reached, bool[S].

    Args:
        arc_begin: int64[S + 1], of states in topological order.
        next_state: int32[A].
        is_final: bool[S].
    """
    has_end = is_final.copy()
    for state in range(len(is_final) - 1, -1, -1):
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            has_end[state] |= has_end[next_state[arc]]
    return has_end


@njit(cache=True, nogil=True)
def heap_sort(keys: np.ndarray, items: np.ndarray) -> None:
    """Sort keys, and the items with them, in place; equal keys by their items.

    Args:
        keys: int64[N].
        items: int64[N].
    """
    for k in range(len(keys)):  # a heap whose greatest comes first
        key, item, at = keys[k], items[k], k
        while at > 0:
            up = (at - 1) // 2
            if keys[up] > key or (keys[up] == key and items[up] >= item):
                break
            keys[at], items[at] = keys[up], items[up]
            at = up
        keys[at], items[at] = key, item
    for size in range(len(keys) - 1, 0, -1):
        key, item = keys[size], items[size]
        keys[size], items[size] = keys[0], items[0]
        at = 0
        while 2 * at + 1 < size:
            child = 2 * at + 1
            if child + 1 < size and (
                keys[child + 1] > keys[child]
                or (keys[child + 1] == keys[child] and items[child + 1] > items[child])
            ):
                child += 1
            if keys[child] < key or (keys[child] == key and items[child] <= item):
                break
            keys[at], items[at] = keys[child], items[child]
            at = child
        keys[at], items[at] = key, item
