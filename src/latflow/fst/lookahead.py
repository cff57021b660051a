"""OpenFst's `olabel_lookahead` files: a `const` FST, and the words behind its states.

The words of such an FST are numbered so that those that can come next from a state are
few intervals of numbers: a composition with a grammar goes on only where the grammar
has one of them.

Public: `Reach`, `load_lookahead`.

Source: OpenFst `add-on.h`, `matcher-fst.h`, `label-reachable.h` (LabelReachableData),
`interval-set.h`.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latflow.fst.graph import Graph
from latflow.fst.openfst import (
    begin_of_contained,
    read_const,
    read_header,
    refuse,
    take,
)
from latflow.jit import njit


@dataclass(frozen=True)
class Reach:
    """The output labels that can come next from each state.

    Attributes:
        begin: int64[S + 1]; the intervals of state s are begin[s] ... begin[s + 1] - 1.
        intervals: int32[I, 2]: first label, and the one behind the last; ascending.
        final_label: stands for a final state that is reached without a label.
    """

    begin: np.ndarray
    intervals: np.ndarray
    final_label: int


def load_lookahead(path: str | Path) -> tuple[Graph, Reach]:
    """Read an `olabel_lookahead` file.

    Returns:
        (the FST, labels as they stand in the file; what its states lead to).

    Raises:
        UserError: there is no such file, it is another FST, or it is truncated.
    """
    graph = Graph.load(path)
    with Path(path).open("rb") as stream:
        buffer = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    outer = read_header(buffer, name=path)
    if outer.fst_type != "olabel_lookahead":
        refuse(f"an FST of type {outer.fst_type}, not olabel_lookahead", path)
    begin = begin_of_contained(buffer, outer, path)
    inner = read_header(buffer, begin, name=path)
    at = read_const(buffer, inner, begin=begin, name=path)[-1]
    has_data, has_input, has_output = take(buffer, at, "<???", path)
    if not has_data or has_input or not has_output:
        refuse("an FST of type olabel_lookahead that does not tell its labels", path)
    _, has_pairs = take(buffer, at + 3, "<??", path)
    at += 5
    if has_pairs:  # the words before they were numbered anew
        at += 8 + 8 * take(buffer, at, "<q", path)[0]
    words = np.frombuffer(buffer, "<i4", (len(buffer) - at) // 4, at).copy()
    if len(words) < _HEAD or words[1] != graph.num_states or words[2]:
        refuse("the FST of type olabel_lookahead is garbled", path)
    reach = Reach(*_intervals(words, graph.num_states), int(words[0]))
    if reach.begin[-1] < 0:
        refuse("the FST is truncated", path)
    return graph, reach


_HEAD = 3  # numbers before the intervals: the final label, how many states (two)


@njit(cache=True, nogil=True)
def _intervals(words: np.ndarray, num_states: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays of `Reach`; `begin` ends with -1 if the words do not suffice.

    Of each state there are the number of intervals (two words), the intervals, and the
    number of labels in them.
    """
    begin = np.zeros(num_states + 1, np.int64)
    intervals = np.empty((len(words) // 2, 2), np.int32)
    at = _HEAD
    for state in range(num_states):
        first, last = at + 2, at + 3
        if last <= len(words) and words[at] >= 0:
            last += 2 * words[at]
        if last > len(words) or words[at] < 0 or words[at + 1]:
            begin[-1] = -1
            break
        count = words[at]
        for interval in range(count):
            for side in range(2):
                word = words[first + 2 * interval + side]
                intervals[begin[state] + interval, side] = word
        begin[state + 1] = begin[state] + count
        at = last
    return begin, intervals[: max(begin[-1], 0)].copy()
