"""Minimization: states that are followed by the same become one.

Labels and costs count together, as one label, after costs are rounded. All states begin
as one block for each final cost; blocks are split until the arcs of each label lead
from a block into one block only.

Source: Valmari 2012, "Fast brief practical DFA minimization"; Kaldi
`fstext/fstext-utils-inl.h` (`MinimizeEncoded`).
"""

from __future__ import annotations

import numpy as np

from latflow.fst.determinize import DELTA, Links
from latflow.fst.graph import Graph, incoming, state_records
from latflow.jit import njit


def minimize_encoded(graph: Graph, *, delta: float = DELTA) -> Graph:
    """Merge states that are followed by the same, with labels and costs as one label.

    Args:
        graph: connected.
        delta: costs are rounded to multiples of it.

    Returns:
        The smallest graph of the same paths with such costs, if no state of the given
        one has two arcs of the same labels and cost; else a smaller one. States keep
        their order; the first of those that are merged stands for all.

    Source: Kaldi `MinimizeEncoded`.
    """
    if not graph.num_states:
        return graph
    arcs = np.array(graph.arcs)
    arcs["weight"] = np.floor(graph.weight / np.float32(delta) + 0.5) * delta
    final = (np.floor(graph.final / np.float32(delta) + 0.5) * delta).astype(np.float32)
    _, blocks = np.unique(final, return_inverse=True)
    # The block that is not used to split others should be the largest.
    largest = np.bincount(blocks).argmax()
    blocks = np.where(blocks == largest, 0, np.where(blocks == 0, largest, blocks))
    symbols, is_repeat = _encode(graph.arc_begin, arcs)
    merged = _refine(
        graph.arc_begin, graph.next_state, symbols, blocks.astype(np.int32)
    )
    del symbols
    begin, arcs, final = _quotient(graph.arc_begin, arcs, is_repeat, final, merged)
    start = int(merged[graph.start])
    return Graph(start, state_records(begin, final, arcs), arcs)


@njit(cache=True, nogil=True)
def _encode(arc_begin: np.ndarray, arcs: Links) -> tuple[np.ndarray, np.ndarray]:
    """Number what the arcs have as labels and costs.

    Returns:
        (int32[A], the numbers: arcs of one state have different ones, also where labels
        and costs are the same, so that the encoded graph is deterministic; bool[A],
        whether an arc before it, of its state, has the same labels and cost).
    """
    size = 16
    while size < 2 * len(arcs):
        size *= 2
    table = np.full(size, -1, np.int32)  # numbers, by a hash of what they stand for
    example = np.empty(len(arcs), np.int32)  # an arc of each number
    repeats = np.zeros(len(arcs), np.int32)  # how many such arcs come before it
    used_by = np.full(len(arcs), -1, np.int32)  # the last state with the number
    symbols = np.empty(len(arcs), np.int32)
    is_repeat = np.zeros(len(arcs), np.bool_)
    count = 0
    for state in range(len(arc_begin) - 1):
        for n in range(arc_begin[state], arc_begin[state + 1]):
            value = np.int64(arcs[n]["ilabel"]) * np.int64(2654435761)
            value = (value ^ np.int64(arcs[n]["olabel"])) * np.int64(1099511628211)
            value ^= np.int64(arcs[n]["weight"] * 1024.0) * np.int64(40503)
            value ^= value >> 29
            repeat = 0
            while True:
                at = (value + repeat) & (size - 1)
                number = table[at]
                while number >= 0 and not (
                    repeats[number] == repeat and _is_alike(arcs, example[number], n)
                ):
                    at = (at + 1) & (size - 1)
                    number = table[at]
                if number < 0 or used_by[number] != state:
                    break
                repeat += 1
            if number < 0:
                number = np.int32(count)
                table[at] = number
                example[number], repeats[number] = n, repeat
                count += 1
            used_by[number] = state
            symbols[n] = number
            is_repeat[n] = repeat > 0
    return symbols, is_repeat


@njit(cache=True, nogil=True)
def _is_alike(arcs: Links, first: int, second: int) -> bool:
    """Return True if two arcs have the same labels and cost."""
    return (
        arcs[first]["ilabel"] == arcs[second]["ilabel"]
        and arcs[first]["olabel"] == arcs[second]["olabel"]
        and arcs[first]["weight"] == arcs[second]["weight"]
    )


@njit(cache=True, nogil=True)
def _partition(class_of: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Begin a partition whose classes can be split.

    Args:
        class_of: int32[N], numbers without gaps.

    Returns:
        (int32[N], elements, class after class; int32[N, 2], where an element stands
        among these, and its class; int32[N, 3], of each class begin, end and the number
        of its elements, at its beginning, that are marked; number of classes).
    """
    size = len(class_of)
    order = np.empty(size, np.int32)
    where = np.empty((size, 2), np.int32)
    classes = np.zeros((size, 3), np.int32)
    count = 0
    for n in range(size):
        classes[class_of[n], 1] += 1
        count = max(count, class_of[n] + 1)
    at = 0
    for number in range(count):
        classes[number, 0] = at
        at += classes[number, 1]
        classes[number, 1] = classes[number, 0]
    for n in range(size):
        number = class_of[n]
        at = classes[number, 1]
        classes[number, 1] += 1
        order[at] = n
        where[n, 0], where[n, 1] = at, number
    return order, where, classes, count


@njit(cache=True, nogil=True)
def _mark(
    element: int,
    order: np.ndarray,
    where: np.ndarray,
    classes: np.ndarray,
    touched: np.ndarray,
    num_touched: int,
) -> int:
    """Mark an element; its class is appended to `touched` at its first mark."""
    at, number = where[element, 0], where[element, 1]
    if classes[number, 2] == 0:
        touched[num_touched] = number
        num_touched += 1
    to = classes[number, 0] + classes[number, 2]
    classes[number, 2] += 1
    other = order[to]
    order[at], where[other, 0] = other, at
    order[to], where[element, 0] = element, to
    return num_touched


@njit(cache=True, nogil=True)
def _split(
    order: np.ndarray,
    where: np.ndarray,
    classes: np.ndarray,
    count: int,
    touched: np.ndarray,
    num_touched: int,
) -> int:
    """Part the marked elements from the others; the smaller part is the new class."""
    for n in range(num_touched):
        number = touched[n]
        begin, end = classes[number, 0], classes[number, 1]
        middle = begin + classes[number, 2]
        classes[number, 2] = 0
        if middle == end:
            continue
        if middle - begin <= end - middle:
            classes[count, 0], classes[count, 1] = begin, middle
            classes[number, 0] = middle
        else:
            classes[count, 0], classes[count, 1] = middle, end
            classes[number, 1] = middle
        for at in range(classes[count, 0], classes[count, 1]):
            where[order[at], 1] = count
        count += 1
    return count


@njit(cache=True, nogil=True)
def _refine(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    symbols: np.ndarray,
    blocks: np.ndarray,
) -> np.ndarray:
    """Find the coarsest partition of the states under which the graph is deterministic.

    Arcs are partitioned too: by symbol, then also by the block they lead to. A set of
    arcs splits the blocks it leaves, a new block the sets of arcs that lead to it.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        symbols: int32[A], no two the same in a state.
        blocks: int32[S], a partition that is given.

    Returns:
        int32[S], blocks by the order of their first states.

    Source: Valmari 2012.
    """
    into_begin, into, source = incoming(arc_begin, next_state)
    states, state_at, state_sets, num_blocks = _partition(blocks)
    arcs, arc_at, arc_sets, num_sets = _partition(symbols)
    touched = np.empty(max(len(blocks), len(symbols)), np.int32)
    block, set_of_arcs = 1, 0
    while set_of_arcs < num_sets:
        count = 0
        for at in range(arc_sets[set_of_arcs, 0], arc_sets[set_of_arcs, 1]):
            state = source[arcs[at]]
            count = _mark(state, states, state_at, state_sets, touched, count)
        num_blocks = _split(states, state_at, state_sets, num_blocks, touched, count)
        set_of_arcs += 1
        while block < num_blocks:
            count = 0
            for at in range(state_sets[block, 0], state_sets[block, 1]):
                state = states[at]
                for n in range(into_begin[state], into_begin[state + 1]):
                    count = _mark(into[n], arcs, arc_at, arc_sets, touched, count)
            num_sets = _split(arcs, arc_at, arc_sets, num_sets, touched, count)
            block += 1
    return _by_first(state_at[:, 1], num_blocks)


@njit(cache=True, nogil=True)
def _by_first(blocks: np.ndarray, num_blocks: int) -> np.ndarray:
    """Number blocks by the order of their first states, int32[S]."""
    number = np.full(num_blocks, -1, np.int32)
    merged = np.empty(len(blocks), np.int32)
    count = 0
    for state in range(len(blocks)):
        if number[blocks[state]] < 0:
            number[blocks[state]] = count
            count += 1
        merged[state] = number[blocks[state]]
    return merged


@njit(cache=True, nogil=True)
def _quotient(
    arc_begin: np.ndarray,
    arcs: Links,
    is_repeat: np.ndarray,
    final: np.ndarray,
    merged: np.ndarray,
) -> tuple[np.ndarray, Links, np.ndarray]:
    """Return (arc_begin, arcs, final) of the first state of each block.

    Arcs are moved to the front of `arcs`, of which a copy of that part is returned.
    """
    begin = np.zeros(merged.max() + 2, np.int64)
    costs = np.empty(len(begin) - 1, np.float32)
    count = used = 0
    for state in range(len(merged)):
        if merged[state] != count:
            continue
        costs[count] = final[state]
        for n in range(arc_begin[state], arc_begin[state + 1]):
            arcs[used] = arcs[n]
            arcs[used]["next_state"] = merged[arcs[n]["next_state"]]
            if not (is_repeat[n] and _is_among(arcs, begin[count], used)):
                used += 1
        count += 1
        begin[count] = used
    return begin, arcs[:used].copy(), costs


@njit(cache=True, nogil=True)
def _is_among(arcs: Links, first: int, last: int) -> bool:
    """Return True if the arc at `last` is one of arcs[first:last]."""
    for n in range(first, last):
        if (
            _is_alike(arcs, n, last)
            and arcs[n]["next_state"] == arcs[last]["next_state"]
        ):
            return True
    return False
