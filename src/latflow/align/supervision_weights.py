"""Weights of a supervision: its composition with the normalization graph.

The numerator of LF-MMI must count a path with the weight that the denominator gives
it, or the ratio of the two could exceed one. So a supervision, or the part of one that
a chunk of frames needs, is composed with the normalization graph (the denominator that
may start anywhere), determinized in the tropical semiring, and minimized with its
weights pushed to the start. All three are done at once, frame after frame, in Numba.

Source: Kaldi `chain/chain-supervision.cc` (`SupervisionSplitter`,
`AddWeightToSupervisionFst`); Mohri 1997, "Finite-state transducers in language and
speech processing" (determinization, pushing).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from latflow.align.supervision import FrameGraph
from latflow.errors import UserError
from latflow.fst.determinize import DELTA, Int, enlarged, sort_by_key
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC, STATE
from latflow.jit import njit

#: An arc of the composition before it is minimized.
_LINK = np.dtype([("label", "i8"), ("target", "i8"), ("cost", "f8")])
#: A pair of states, and its cost beyond the least one of its subset.
_ELEMENT = np.dtype([("pair", "i8"), ("cost", "f8")])
_Graph = tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Normalization:
    """The normalization graph, ready for compositions; safe to share.

    Args:
        graph: acceptor without epsilons; labels are pdf-id + 1.

    Raises:
        UserError: it is not such a graph.
    """

    def __init__(self, graph: Graph) -> None:
        facts = graph.properties
        if facts.has_epsilons or not facts.is_acceptor or not graph.num_states:
            raise UserError(
                "the normalization graph is empty, has epsilons or is not an acceptor",
                remedy="make the graphs of the chain system again",
            )
        source = np.repeat(np.arange(graph.num_states), np.diff(graph.arc_begin))
        order = np.lexsort((graph.next_state, graph.ilabel, source))
        self.graph = graph
        self._arrays: _Graph = (
            graph.start,
            np.ascontiguousarray(graph.arc_begin),
            np.ascontiguousarray(graph.ilabel[order], np.int32),
            np.ascontiguousarray(graph.next_state[order], np.int32),
            np.ascontiguousarray(graph.weight[order], np.float32),
            np.ascontiguousarray(graph.final, np.float32),
        )

    @classmethod
    def load(cls, path: str | Path) -> Normalization:
        """Read `normalization.fst`.

        Raises:
            UserError: it is missing or garbled.
        """
        return cls(Graph.load(path))

    def compose(
        self, supervision: FrameGraph, first: int = 0, count: int | None = None
    ) -> Graph:
        """Return the weighted supervision of some frames.

        Its paths are those of the supervision, cut to the frames; the weight of a path
        is the least of those that the normalization graph has for it.

        Args:
            supervision: of the whole utterance.
            first: first frame (of the output).
            count: number of frames; None for all to the end.

        Returns:
            Deterministic, minimal, states in the order of time, one final state; empty
            if the normalization graph accepts none of the paths.

        Raises:
            ValueError: the supervision has no such frames.
        """
        if count is None:
            count = supervision.num_frames - first
        if first < 0 or count < 1 or first + count > supervision.num_frames:
            raise ValueError(
                f"frames {first} to {first + count} of {supervision.num_frames}"
            )
        arrays = supervision.arcs, supervision.first_arc, supervision.first_state
        states, arcs = _composed(arrays, first, count, self._arrays)
        return Graph(0 if len(states) else -1, states, arcs)


@njit(cache=True, nogil=True)
def _composed(
    supervision: tuple[Any, np.ndarray, np.ndarray],
    first: int,
    count: int,
    other: _Graph,
) -> tuple[Any, Any]:
    """Compose, determinize and minimize; returns STATE and ARC records.

    Args:
        supervision: arrays of the `FrameGraph`.
        first: first frame to take.
        count: number of frames.
        other: start, arc_begin, label, next_state, weight, final of the normalization
            graph; arcs of a state are sorted by label.
    """
    links, first_link, times, to_end = _determinized(supervision, first, count, other)
    _push(links, first_link, to_end)
    if to_end[0] == np.inf:
        return np.empty(0, STATE), np.empty(0, ARC)
    return _records(links, first_link, _merged(links, first_link, times, to_end))


@njit(cache=True, nogil=True)
def _determinized(
    supervision: tuple[Any, np.ndarray, np.ndarray],
    first: int,
    count: int,
    other: _Graph,
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Compose and determinize; see `_composed`.

    A state of the result is a subset of pairs (state of the supervision, state of the
    normalization graph), with what each costs beyond the cheapest one.

    Returns:
        (_LINK[A], by source; first link of each state, int64[>= S + 1]; first state of
        each time, int64[count + 2]; final costs, float64[S], +inf before the end).
    """
    arcs, first_arc, first_state = supervision
    start, final = other[0], other[5]
    pool = np.empty(256, _ELEMENT)
    begin = np.zeros(4 * count + 16, np.int64)  # of each state's subset
    hashes = np.zeros(len(begin), np.int64)
    first_link = np.zeros(len(begin), np.int64)
    links = np.empty(8 * count + 16, _LINK)
    times = np.zeros(count + 2, np.int64)
    keys, costs = np.empty(64, np.int64), np.empty(64, np.float64)
    for node in range(first_state[first + 1] - first_state[first]):
        pool = enlarged(pool, node + 1)
        pool[node]["pair"] = node * len(final) + start
        pool[node]["cost"] = 0.0
        begin[1] = node + 1
    num_states, num_links, times[1] = 1, 0, 1
    for t in range(count):
        here, there = first_state[first + t], first_state[first + t + 1]
        num_pairs = (first_state[first + t + 2] - there) * len(final)
        low = times[t + 1]
        for state in range(times[t], low):
            keys, costs, size = _successors(
                pool[begin[state] : begin[state + 1]],
                (arcs, first_arc, here, there, num_pairs),
                other,
                (keys, costs),
            )
            order = sort_by_key(keys, size)
            at = 0
            while at < size:
                begin = enlarged(begin, num_states + 2)
                hashes = enlarged(hashes, num_states + 1)
                first_link = enlarged(first_link, num_states + 2)
                links = enlarged(links, num_links + 1)
                links[num_links]["label"] = keys[order[at]] // num_pairs
                pool, end, at, least, hashes[num_states] = _gather(
                    (keys, costs, order, size), at, num_pairs, pool, begin[num_states]
                )
                begin[num_states + 1] = end
                target = _same(pool, begin, hashes, low, num_states)
                links[num_links]["target"] = target
                links[num_links]["cost"] = least
                num_links += 1
                num_states = max(num_states, target + 1)
            first_link[state + 1] = num_links
        times[t + 2] = num_states
    to_end = np.full(num_states, np.inf)
    for state in range(times[count], num_states):
        first_link[state + 1] = num_links
        for n in range(begin[state], begin[state + 1]):
            cost = pool[n]["cost"] + final[pool[n]["pair"] % len(final)]
            to_end[state] = min(to_end[state], cost)
    return links, first_link, times, to_end


@njit(cache=True, nogil=True)
def _successors(
    subset: Any,
    supervision: tuple[Any, np.ndarray, int, int, int],
    other: _Graph,
    buffers: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return where the pairs of a subset lead, and at what cost.

    Args:
        subset: _ELEMENT.
        supervision: arcs and first_arc of the `FrameGraph`, its first states before
            and behind the frame, number of pairs behind it.
        other: as in `_composed`.
        buffers: arrays to use.

    Returns:
        (keys, label * number of pairs + pair, not sorted; costs; their number).
    """
    arcs, first_arc, here, there, num_pairs = supervision
    _, arc_begin, labels, next_state, weight, final = other
    keys, costs = buffers
    size = 0
    for n in range(len(subset)):
        node = here + subset[n]["pair"] // len(final)
        state = subset[n]["pair"] % len(final)
        for arc in range(first_arc[node], first_arc[node + 1]):
            label = arcs[arc]["label"]
            base = np.int64(label) * num_pairs
            base += np.int64(arcs[arc]["next_state"] - there) * len(final)
            end = arc_begin[state + 1]
            at = _lower_bound(labels, arc_begin[state], end, label)
            while at < end and labels[at] == label:
                keys, costs = enlarged(keys, size + 1), enlarged(costs, size + 1)
                keys[size] = base + next_state[at]
                costs[size] = subset[n]["cost"] + weight[at]
                size += 1
                at += 1
    return keys, costs, size


@njit(cache=True, nogil=True)
def _lower_bound(labels: np.ndarray, low: Int, high: Int, label: Int) -> Int:
    """Find the first of labels[low:high], sorted, that is not below `label`."""
    while low < high:
        middle = (low + high) // 2
        if labels[middle] < label:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _gather(
    found: tuple[np.ndarray, np.ndarray, np.ndarray, int],
    at: int,
    num_pairs: int,
    pool: Any,
    begin: int,
) -> tuple[Any, int, int, Any, Int]:
    """Put the pairs of the next label into the pool; those found twice cost the less.

    Args:
        found: keys, costs, order, size of what `_successors` found.
        at: the first of the label, in order.
        num_pairs: of the frame.
        pool: _ELEMENT; grows.
        begin: first element of the new subset.

    Returns:
        (pool, end of the subset, first of the next label, least cost, which is taken
        off, hash of the pairs).
    """
    keys, costs, order, size = found
    label = keys[order[at]] // num_pairs
    end, least = begin, np.inf
    hashed = np.int64(1469598103934665603)
    while at < size and keys[order[at]] // num_pairs == label:
        pair = keys[order[at]] - label * num_pairs
        cost = costs[order[at]]
        least = min(least, cost)
        at += 1
        if end > begin and pool[end - 1]["pair"] == pair:
            pool[end - 1]["cost"] = min(pool[end - 1]["cost"], cost)
            continue
        pool = enlarged(pool, end + 1)
        pool[end]["pair"] = pair
        pool[end]["cost"] = cost
        hashed = (hashed ^ pair) * np.int64(1099511628211)
        end += 1
    for n in range(begin, end):
        pool[n]["cost"] -= least
    return pool, end, at, least, hashed


@njit(cache=True, nogil=True)
def _same(pool: Any, begin: np.ndarray, hashes: np.ndarray, low: int, new: int) -> int:
    """Return the first of the states low ... new whose subset is that of `new`."""
    size = begin[new + 1] - begin[new]
    for state in range(low, new):
        if hashes[state] != hashes[new] or begin[state + 1] - begin[state] != size:
            continue
        n = 0
        while n < size:
            one, two = pool[begin[state] + n], pool[begin[new] + n]
            if one["pair"] != two["pair"] or abs(one["cost"] - two["cost"]) > DELTA:
                break
            n += 1
        if n == size:
            return state
    return new


@njit(cache=True, nogil=True)
def _push(links: Any, first_link: np.ndarray, to_end: np.ndarray) -> None:
    """Push costs to the arcs of the start, in place; +inf on arcs that lead nowhere.

    Args:
        links: _LINK, by source.
        first_link: int64[>= S + 1].
        to_end: float64[S], least cost from each state to an end; on entry that of the
            last states.
    """
    for state in range(len(to_end) - 1, -1, -1):
        low, high = first_link[state], first_link[state + 1]
        for n in range(low, high):
            cost = links[n]["cost"] + to_end[links[n]["target"]]
            to_end[state] = min(to_end[state], cost)
            links[n]["cost"] = cost
        for n in range(low, high):
            if state > 0 and links[n]["cost"] < np.inf:
                links[n]["cost"] -= to_end[state]


@njit(cache=True, nogil=True)
def _merged(
    links: Any, first_link: np.ndarray, times: np.ndarray, to_end: np.ndarray
) -> np.ndarray:
    """Find the state that stands for each state, int64[S]; targets are replaced.

    States of a time are merged if what follows is the same, costs rounded to DELTA
    (as OpenFst's `Minimize` does); -1 for those that lead nowhere.
    """
    merged = np.full(len(to_end), -1, np.int64)
    hashes = np.zeros(len(to_end), np.int64)
    for t in range(len(times) - 2, -1, -1):
        for state in range(times[t], times[t + 1]):
            if to_end[state] == np.inf:
                continue
            hashed = np.int64(1469598103934665603)
            for n in range(first_link[state], first_link[state + 1]):
                if links[n]["cost"] < np.inf:
                    links[n]["target"] = merged[links[n]["target"]]
                    hashed = (hashed ^ links[n]["label"]) * np.int64(1099511628211)
                    hashed = (hashed ^ links[n]["target"]) * np.int64(1099511628211)
            hashes[state] = hashed
            merged[state] = state
            for earlier in range(times[t], state):
                is_first = merged[earlier] == earlier and hashes[earlier] == hashed
                if is_first and _is_followed_alike(links, first_link, earlier, state):
                    merged[state] = earlier
                    break
    return merged


@njit(cache=True, nogil=True)
def _is_followed_alike(
    links: Any, first_link: np.ndarray, one: int, other: int
) -> bool:
    """Return whether two states have the same live links, costs rounded."""
    at, end = first_link[one], first_link[one + 1]
    for n in range(first_link[other], first_link[other + 1]):
        if links[n]["cost"] == np.inf:
            continue
        while at < end and links[at]["cost"] == np.inf:
            at += 1
        if at == end or links[at]["label"] != links[n]["label"]:
            return False
        if links[at]["target"] != links[n]["target"]:
            return False
        if abs(links[at]["cost"] - links[n]["cost"]) > DELTA:
            return False
        at += 1
    while at < end and links[at]["cost"] == np.inf:
        at += 1
    return at == end


@njit(cache=True, nogil=True)
def _records(links: Any, first_link: np.ndarray, merged: np.ndarray) -> tuple[Any, Any]:
    """Return the STATE and ARC records of the states that stand for themselves."""
    number = np.zeros(len(merged), np.int64)
    num_states, num_arcs = 0, 0
    for state in range(len(merged)):
        number[state] = num_states
        if merged[state] == state:
            num_states += 1
            num_arcs += first_link[state + 1] - first_link[state]
    states, arcs = np.empty(num_states, STATE), np.empty(num_arcs, ARC)
    used = 0
    for state in range(len(merged)):
        if merged[state] != state:
            continue
        here = states[number[state]]
        here["first_arc"] = used
        for n in range(first_link[state], first_link[state + 1]):
            if links[n]["cost"] < np.inf:
                arcs[used]["ilabel"] = arcs[used]["olabel"] = links[n]["label"]
                arcs[used]["weight"] = links[n]["cost"]
                arcs[used]["next_state"] = number[links[n]["target"]]
                used += 1
        here["num_arcs"] = used - here["first_arc"]
        here["num_input_epsilons"] = here["num_output_epsilons"] = 0
        here["final"] = np.inf
    states[num_states - 1]["final"] = 0.0
    return states, arcs[:used]
