"""Minimization of small acyclic (or nearly acyclic) transducers.

States are merged if what follows them is the same: the same final cost, and arcs of the
same labels and costs to merged states; costs are rounded first. Working from the end
towards the start, one pass finds this. States on a cycle (the inner states of the
silence HMM, before self-loops are added) are kept apart, which full minimization of the
graphs of training would do as well.

Source: Revuz 1992, "Minimization of acyclic deterministic automata in linear time";
Kaldi `fstext/fstext-utils-inl.h` (`MinimizeEncoded`: the rounding, and that labels and
costs count together). `latflow.fst.minimize` takes graphs of any form.
"""

from __future__ import annotations

import numpy as np

from latflow.fst.determinize import DELTA, OUT_LINK, Int, Links, by_source
from latflow.jit import njit

_UNSEEN = -1


@njit(cache=True, nogil=True)
def _rounded(cost: float) -> float:
    """Return a cost to the nearest multiple of DELTA (OpenFst's `Quantize`)."""
    if cost == np.inf:
        return cost
    return np.floor(cost / DELTA + 0.5) * DELTA


@njit(cache=True, nogil=True)
def _components(begin: np.ndarray, links: Links) -> tuple[np.ndarray, np.ndarray]:
    """Return the strongly connected components of what the start, state 0, reaches.

    Returns:
        (states in an order where targets come before sources, components together;
        bool[S], whether a state is on a cycle).

    Source: Tarjan 1972, without recursion.
    """
    num_states = len(begin) - 1
    found_at = np.full(num_states, _UNSEEN, np.int64)
    lowest = np.zeros(num_states, np.int64)
    next_link = begin[:-1].copy()
    is_open = np.zeros(num_states, np.bool_)
    on_cycle = np.zeros(num_states, np.bool_)
    order = np.empty(num_states, np.int64)
    opened: list[Int] = [np.int64(0)]
    path: list[Int] = [np.int64(0)]
    found_at[0] = lowest[0] = 0
    is_open[0] = True
    seen, done = 1, 0
    while len(path) > 0:
        state = path[-1]
        if next_link[state] < begin[state + 1]:
            target = links[next_link[state]]["target"]
            next_link[state] += 1
            if found_at[target] == _UNSEEN:
                found_at[target] = lowest[target] = seen
                seen += 1
                is_open[target] = True
                opened.append(target)
                path.append(target)
            elif is_open[target]:
                lowest[state] = min(lowest[state], found_at[target])
                on_cycle[state] |= target == state
            continue
        path.pop()
        if len(path) > 0:
            lowest[path[-1]] = min(lowest[path[-1]], lowest[state])
        if lowest[state] == found_at[state]:
            done = _close_component(state, opened, is_open, on_cycle, order, done)
    return order[:done], on_cycle


@njit(cache=True, nogil=True)
def _close_component(
    root: int,
    opened: list[Int],
    is_open: np.ndarray,
    on_cycle: np.ndarray,
    order: np.ndarray,
    done: int,
) -> int:
    """Move the component of `root` from the open states to the order."""
    is_single = opened[-1] == root
    member = -1
    while member != root:
        member = opened.pop()
        is_open[member] = False
        on_cycle[member] |= not is_single
        order[done] = member
        done += 1
    return done


@njit(cache=True, nogil=True)
def _precedes(links: Links, first: int, second: int) -> bool:
    """Return True if one link comes before another by labels, target and cost."""
    one, other = links[first], links[second]
    if one["ilabel"] != other["ilabel"]:
        return one["ilabel"] < other["ilabel"]
    if one["olabel"] != other["olabel"]:
        return one["olabel"] < other["olabel"]
    if one["target"] != other["target"]:
        return one["target"] < other["target"]
    return one["weight"] < other["weight"]


@njit(cache=True, nogil=True)
def _is_equal(links: Links, first: int, second: int) -> bool:
    """Return True if two links are the same, sources aside."""
    one, other = links[first], links[second]
    return (
        one["ilabel"] == other["ilabel"]
        and one["olabel"] == other["olabel"]
        and one["target"] == other["target"]
        and one["weight"] == other["weight"]
    )


@njit(cache=True, nogil=True)
def _sort_unique(links: Links, low: Int, high: Int) -> int:
    """Sort links[low:high] and drop repeated ones; returns the new end."""
    for n in range(low + 1, high):
        slot = n
        while slot > low and _precedes(links, slot, slot - 1):
            held = links[slot : slot + 1].copy()
            links[slot] = links[slot - 1]
            links[slot - 1] = held[0]
            slot -= 1
    kept = min(low + 1, high)
    for n in range(low + 1, high):
        if not _is_equal(links, n, kept - 1):
            links[kept] = links[n]
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _hash(links: Links, low: Int, high: Int, cost: Int) -> Int:
    """Return a hash of what leaves a state."""
    value = np.int64(1469598103934665603)
    if cost != np.inf:
        value ^= np.int64(cost / DELTA)
    for n in range(low, high):
        for part in (
            links[n]["ilabel"],
            links[n]["olabel"],
            links[n]["target"],
            np.int64(links[n]["weight"] / DELTA),
        ):
            value = (value ^ part) * np.int64(1099511628211)
    return value


@njit(cache=True, nogil=True)
def _merge(
    begin: np.ndarray,
    ends: np.ndarray,
    links: Links,
    final: np.ndarray,
    order: np.ndarray,
    on_cycle: np.ndarray,
) -> np.ndarray:
    """Find the state that stands for each state, int64[S]; targets are replaced."""
    merged = np.arange(len(begin) - 1)
    chains: dict[Int, Int] = {np.int64(0): np.int64(0)}
    next_in_chain = np.full(len(merged), -1, np.int64)
    chains.clear()
    for state in order:
        low = begin[state]
        for n in range(low, begin[state + 1]):
            links[n]["target"] = merged[links[n]["target"]]
        ends[state] = _sort_unique(links, low, begin[state + 1])
        if on_cycle[state]:
            continue
        value = _hash(links, low, ends[state], final[state])
        head: Int = np.int64(-1)
        if value in chains:
            head = chains[value]
        other = head
        while other >= 0:
            is_same = final[other] == final[state]
            is_same &= ends[other] - begin[other] == ends[state] - low
            n = 0
            while is_same and low + n < ends[state]:
                is_same = _is_equal(links, low + n, begin[other] + n)
                n += 1
            if is_same:
                break
            other = next_in_chain[other]
        if other >= 0:
            merged[state] = other
        else:
            next_in_chain[state] = head
            chains[value] = state
    return merged


@njit(cache=True, nogil=True)
def minimize_acyclic(
    links: Links, final: np.ndarray
) -> tuple[np.ndarray, Links, np.ndarray]:
    """Merge states that are followed by the same, costs rounded to 1/1024.

    Args:
        links: OUT_LINK[A]; state 0 is the start.
        final: float64[S], cost, +inf where not final.

    Returns:
        (arc_begin, int64[M + 1]; OUT_LINK arcs by source; final, float64[M]) of the
        states that the start, still state 0, reaches.
    """
    begin, links = by_source(links, len(final))
    for n in range(len(links)):
        links[n]["weight"] = _rounded(links[n]["weight"])
    final = np.array([_rounded(cost) for cost in final])
    order, on_cycle = _components(begin, links)
    ends = begin[1:].copy()
    merged = _merge(begin, ends, links, final, order, on_cycle)

    number = np.full(len(final), -1, np.int64)
    num_states, num_arcs = 0, 0
    for n in range(len(order) - 1, -1, -1):
        state = order[n]
        if merged[state] == state:
            number[state] = num_states
            num_states += 1
            num_arcs += ends[state] - begin[state]
    arc_begin = np.zeros(num_states + 1, np.int64)
    kept = np.empty(num_arcs, OUT_LINK)
    costs = np.empty(num_states)
    at = 0
    for n in range(len(order) - 1, -1, -1):
        state = order[n]
        if merged[state] != state:
            continue
        costs[number[state]] = final[state]
        for link in range(begin[state], ends[state]):
            kept[at] = links[link]
            kept[at]["source"] = number[state]
            kept[at]["target"] = number[merged[links[link]["target"]]]
            at += 1
        arc_begin[number[state] + 1] = at
    return arc_begin, kept, costs
