"""Determinization of small transducers whose output is a known word sequence.

kaldifst determinizes whatever FST there is, one at a time under Python's lock. The
machines behind training graphs are special: every path through one state has emitted
the same number of words of the one transcript (its *position*). What an element of a
subset still owes in output is then a range of the transcript, and weights are all that
subsets carry. This module does the same as kaldifst's `determinize_star(use_log=True)`
for such machines, in Numba and without the lock.

Source: Mohri 1997, "Finite-state transducers in language and speech processing"; Kaldi
`fstext/determinize-star-inl.h`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latflow.jit import njit

#: An arc under construction; `label` is an input label, 0 for epsilon.
LINK = np.dtype([("source", "i8"), ("label", "i8"), ("target", "i8"), ("weight", "f8")])
#: An arc of a finished machine.
OUT_LINK = np.dtype(
    [
        ("source", "i8"),
        ("ilabel", "i8"),
        ("olabel", "i8"),
        ("target", "i8"),
        ("weight", "f8"),
    ]
)
#: An array of such records; what its fields are escapes the type checker.
Links = Any
#: A number as Numba's lists and dictionaries hold it.
Int = Any

DELTA = 1.0 / 1024.0  # costs closer than this count as equal, as in Kaldi
_NEGLIGIBLE = 1e-10  # share of an element's probability not worth passing on
SUPERFINAL = -1  # where words are left over at the end


@njit(cache=True, nogil=True)
def log_add(first: Int, second: Int) -> float:
    """Return the sum of two costs in the log semiring: -log(e^-a + e^-b)."""
    low, high = min(first, second), max(first, second)
    if high == np.inf:
        return low
    return low - np.log1p(np.exp(low - high))


@njit(cache=True, nogil=True)
def by_source(links: Links, num_states: int) -> tuple[np.ndarray, Links]:
    """Sort links by their source, keeping the order within one.

    Returns:
        (begin, int64[S + 1]; the sorted links).
    """
    begin = np.zeros(num_states + 1, np.int64)
    for n in range(len(links)):
        begin[links[n]["source"] + 1] += 1
    begin = np.cumsum(begin)
    at = begin[:-1].copy()
    ordered = np.empty(len(links), links.dtype)
    for n in range(len(links)):
        source = links[n]["source"]
        ordered[at[source]] = links[n]
        at[source] += 1
    return begin, ordered


@njit(cache=True, nogil=True)
def sort_by_key(keys: np.ndarray, count: int) -> np.ndarray:
    """Return indices that sort the first `count` keys (Shell 1959; mostly a few)."""
    order = np.arange(count)
    gap = 1
    while 3 * gap < count:
        gap = 3 * gap + 1
    while gap > 0:
        for n in range(gap, count):
            moving = order[n]
            position = n
            while position >= gap and keys[order[position - gap]] > keys[moving]:
                order[position] = order[position - gap]
                position -= gap
            order[position] = moving
        gap //= 3
    return order


@njit(cache=True, nogil=True)
def enlarged(array: Links, needed: int) -> Links:
    """Return the array, enlarged (at least doubled) if it is shorter than needed."""
    if needed <= len(array):
        return array
    return resized(array, space(array, needed))


@njit(cache=True, nogil=True)
def space(array: Links, needed: int) -> int:
    """Return the elements that the array has when it is enlarged."""
    return len(array) if needed <= len(array) else max(needed, 2 * len(array))


@njit(cache=True, nogil=True)
def resized(array: Links, size: int) -> Links:
    """Return the array with room for `size` elements, no fewer than it has."""
    grown = np.empty(size, array.dtype)
    for n in range(len(array)):  # a slice assignment takes Numba seconds to compile
        grown[n] = array[n]
    return grown


@njit(cache=True, nogil=True)
def _close(
    elements: Links,
    count: int,
    slot_of: np.ndarray,
    begin: np.ndarray,
    links: Links,
) -> tuple[Links, int]:
    """Add to a subset all that is reached by epsilon links, with summed weights.

    Args:
        elements: LINK[>= count] of which `target` (the state) and `weight` are used;
            grows.
        count: number of elements.
        slot_of: int64[S], all -1; index of a state in `elements`, on return.
        begin: int64[S + 1], first link of each state.
        links: the machine.

    Returns:
        (elements, new count).
    """
    pending = np.empty(max(16, count), np.float64)
    for n in range(count):
        slot_of[elements[n]["target"]] = n
        pending[n] = elements[n]["weight"]
    queue: list[Int] = [np.int64(n) for n in range(count)]
    at = 0
    while at < len(queue):
        slot = queue[at]
        at += 1
        weight = pending[slot]
        pending[slot] = np.inf
        state = elements[slot]["target"]
        if weight == np.inf or weight > elements[slot]["weight"] - np.log(_NEGLIGIBLE):
            continue
        for n in range(begin[state], begin[state + 1]):
            if links[n]["label"] != 0:
                continue
            target = links[n]["target"]
            if slot_of[target] < 0:
                elements = enlarged(elements, count + 1)
                pending = enlarged(pending, count + 1)
                slot_of[target] = count
                elements[count]["target"] = target
                elements[count]["weight"] = np.inf
                pending[count] = np.inf
                count += 1
            other = slot_of[target]
            passed = weight + links[n]["weight"]
            elements[other]["weight"] = log_add(elements[other]["weight"], passed)
            pending[other] = log_add(pending[other], passed)
            queue.append(other)
    return elements, count


@njit(cache=True, nogil=True)
def _successors(elements: Links, count: int, begin: np.ndarray, links: Links) -> Links:
    """Return labelled links out of a closed subset, sorted by (label, target), summed.

    Returns:
        LINK[M]; `weight` includes that of the element.
    """
    total = 0
    for n in range(count):
        state = elements[n]["target"]
        total += begin[state + 1] - begin[state]
    found = np.empty(total, LINK)
    keys = np.empty(total, np.int64)
    num_states = len(begin) - 1
    used = 0
    for n in range(count):
        state = elements[n]["target"]
        for link in range(begin[state], begin[state + 1]):
            if links[link]["label"] != 0:
                found[used] = links[link]
                found[used]["weight"] += elements[n]["weight"]
                keys[used] = links[link]["label"] * num_states + links[link]["target"]
                used += 1
    order = sort_by_key(keys, used)
    merged = np.empty(used, LINK)
    kept = 0
    for n in range(used):
        here = order[n]
        if n > 0 and keys[here] == keys[order[n - 1]]:
            merged[kept - 1]["weight"] = log_add(
                merged[kept - 1]["weight"], found[here]["weight"]
            )
        else:
            merged[kept] = found[here]
            kept += 1
    return merged[:kept]


@njit(cache=True, nogil=True)
def _same_subset(pool: Links, first: int, links: Links, low: int, high: int) -> bool:
    """Return True if a stored subset equals links[low:high], weights within DELTA."""
    for n in range(high - low):
        if pool[first + n]["target"] != links[low + n]["target"]:
            return False
        if abs(pool[first + n]["weight"] - links[low + n]["weight"]) > DELTA:
            return False
    return True


@njit(cache=True, nogil=True)
def _find_subset(
    links: Links,
    low: int,
    high: int,
    pool: Links,
    pool_begin: list[Int],
    chains: dict[Int, Int],
    next_in_chain: list[Int],
) -> tuple[Links, int]:
    """Return the determinized state for links[low:high]; a new one if need be.

    Subsets are found by a hash of their states; those of one hash form a chain.
    """
    hashed = np.int64(1469598103934665603)
    for n in range(low, high):
        hashed = (hashed ^ links[n]["target"]) * np.int64(1099511628211)
    head: Int = np.int64(-1)
    if hashed in chains:
        head = chains[hashed]
    state = head
    while state >= 0:
        first, last = pool_begin[state], pool_begin[state + 1]
        if last - first == high - low and _same_subset(pool, first, links, low, high):
            return pool, state
        state = next_in_chain[state]
    state = len(next_in_chain)
    next_in_chain.append(head)
    chains[hashed] = state
    first = pool_begin[state]
    pool = enlarged(pool, first + high - low)
    for n in range(high - low):
        pool[first + n] = links[low + n]
    pool_begin.append(first + high - low)
    return pool, state


@njit(cache=True, nogil=True)
def _emit(
    out: Links,
    used: int,
    arc: tuple[Int, Int, Int, float],
    words: np.ndarray,
    extra_state: int,
) -> tuple[Links, int, int]:
    """Add an arc with any number of output words; those after the first get arcs too.

    Args:
        out: OUT_LINK[>= used]; grows.
        used: number of links in it.
        arc: source, input label, target, weight.
        words: what the arc puts out.
        extra_state: the next free number for states in between (counted downwards
            since the number of determinized states is not known yet).

    Returns:
        (out, used, extra_state).
    """
    source, ilabel, target, weight = arc
    count = max(1, len(words))
    out = enlarged(out, used + count)
    for n in range(count):
        out[used]["source"] = source
        out[used]["ilabel"] = ilabel if n == 0 else 0
        out[used]["olabel"] = words[n] if n < len(words) else 0
        out[used]["weight"] = weight if n == 0 else 0.0
        source = target
        if n < count - 1:
            source = extra_state
            extra_state -= 1
        out[used]["target"] = source
        used += 1
    return out, used, extra_state


@njit(cache=True, nogil=True)
def _normalize(links: Links, low: int, high: int) -> float:
    """Divide the weights of links[low:high] by their sum, which is returned."""
    total = np.inf
    for n in range(low, high):
        total = log_add(total, links[n]["weight"])
    for n in range(low, high):
        links[n]["weight"] -= total
    return total


@njit(cache=True, nogil=True)
def determinize(
    begin: np.ndarray,
    links: Links,
    position: np.ndarray,
    final: np.ndarray,
    words: np.ndarray,
) -> tuple[Links, np.ndarray]:
    """Determinize on the input side, in the log semiring, and remove epsilons.

    Args:
        begin: int64[S + 1]; state 0 is the start.
        links: LINK, by source.
        position: int64[S]; how many of the words have been emitted in a state.
        final: float64[S], cost, +inf where not final; all words are out there.
        words: int64[N].

    Returns:
        (OUT_LINK arcs; final costs, float64[D + 1 + E]): D determinized states, 0 the
        start; behind them one for words left over at the end and E states in between,
        where more than one word came out at once.
    """
    slot_of = np.full(len(position), -1, np.int64)
    pool = np.zeros(64, LINK)  # subsets: first the start, with weight 0
    pool_begin: list[Int] = [np.int64(0), np.int64(1)]
    next_in_chain: list[Int] = [np.int64(-1)]
    chains = {np.int64(0): np.int64(0)}
    out = np.empty(64, OUT_LINK)
    used, extra_state = 0, SUPERFINAL - 1
    emitted: list[Int] = [np.int64(0)]
    costs = [np.inf]
    state = 0
    while state < len(emitted):
        subset = pool[pool_begin[state] : pool_begin[state + 1]].copy()
        subset, count = _close(subset, len(subset), slot_of, begin, links)
        cost = _forget(subset, count, slot_of, final)
        found = _successors(subset, count, begin, links)
        low = 0
        while low < len(found):
            high, least = _end_of_label(found, low, position)
            weight = _normalize(found, low, high)
            pool, target = _find_subset(
                found, low, high, pool, pool_begin, chains, next_in_chain
            )
            if target == len(emitted):
                emitted.append(least)
                costs.append(np.inf)
            arc = (state, found[low]["label"], target, weight)
            put_out = words[emitted[state] : least]
            out, used, extra_state = _emit(out, used, arc, put_out, extra_state)
            low = high
        if cost < np.inf and emitted[state] == len(words):
            costs[state] = cost
        elif cost < np.inf:
            arc = (state, 0, SUPERFINAL, cost)
            rest = words[emitted[state] :]
            out, used, extra_state = _emit(out, used, arc, rest, extra_state)
        state += 1
    return _number_extra(out[:used], costs, extra_state)


@njit(cache=True, nogil=True)
def _forget(
    elements: Links, count: int, slot_of: np.ndarray, final: np.ndarray
) -> float:
    """Clear `slot_of` for the next subset; returns the final cost of this one."""
    cost = np.inf
    for n in range(count):
        slot_of[elements[n]["target"]] = -1
        cost = log_add(cost, elements[n]["weight"] + final[elements[n]["target"]])
    return cost


@njit(cache=True, nogil=True)
def _end_of_label(links: Links, low: int, position: np.ndarray) -> tuple[int, Int]:
    """Return the end of the links of a label, and their targets' least position."""
    high = low
    least = position[links[low]["target"]]
    while high < len(links) and links[high]["label"] == links[low]["label"]:
        least = min(least, position[links[high]["target"]])
        high += 1
    return high, least


@njit(cache=True, nogil=True)
def _number_extra(
    out: Links, costs: list[float], extra_state: int
) -> tuple[Links, np.ndarray]:
    """Number the states counted downwards behind the determinized ones."""
    num_states = len(costs)
    for n in range(len(out)):
        if out[n]["source"] < 0:
            out[n]["source"] = num_states - 1 - out[n]["source"]
        if out[n]["target"] < 0:
            out[n]["target"] = num_states - 1 - out[n]["target"]
    final = np.full(num_states - 1 - extra_state, np.inf)
    for state in range(num_states):
        final[state] = costs[state]
    final[num_states - 1 - SUPERFINAL] = 0.0
    return out, final
