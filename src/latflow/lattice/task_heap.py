"""The heap of tasks of a determinisation, the cheapest first.

Public: `push`, `pop`.
"""

from __future__ import annotations

from numba import njit

from latflow.lattice.ropes import Number
from latflow.lattice.subsets import HEAP, Pools


@njit(cache=True, nogil=True)
def _is_sooner(pools: Pools, one: Number, two: Number) -> Number:
    """Whether a task is to be done before another: the cheaper, or else the older."""
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
