"""The states and arcs of a binary lattice, as 32-bit words.

Behind the header every part of Kaldi's lattice files is a multiple of four bytes. A
state is its final weight, the number of its arcs (two words) and the arcs; an arc is
input label, output label, weight, target. A weight is the graph and the acoustic cost;
in a compact lattice a string of transition-ids follows, its length first, and both
labels are the word.

Public: `scan`, `unpack`, `unpack_compact`, `pack`, `pack_compact`.

Source: OpenFst `fst/vector-fst.h`, Kaldi `fstext/lattice-weight.h`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

Arrays = tuple[np.ndarray, np.ndarray]


@njit(cache=True, nogil=True)
def scan(
    words: np.ndarray,
    num_states: int,
    is_compact: bool,  # noqa: FBT001
) -> tuple[int, int, int, int]:
    """Measure a lattice.

    Args:
        words: int32, starting behind the header.
        num_states: number of states.
        is_compact: whether weights have strings.

    Returns:
        (arcs, transition-ids in the strings of arcs, those in the strings of states,
        words of the lattice); -1 in the last place if it is longer than `words`.
    """
    num_arcs, num_ids, num_final_ids, at = 0, 0, 0, 0
    for _ in range(num_states):
        at += 2
        if is_compact:
            if at >= len(words) or words[at] < 0:
                return 0, 0, 0, -1
            num_final_ids += words[at]
            at += 1 + words[at]
        if at + 1 >= len(words) or words[at] < 0:
            return 0, 0, 0, -1
        degree = words[at]
        num_arcs += degree
        at += 2
        if not is_compact:
            at += 5 * degree
            continue
        for _ in range(degree):
            if at + 4 >= len(words) or words[at + 4] < 0:
                return 0, 0, 0, -1
            num_ids += words[at + 4]
            at += 6 + words[at + 4]
    return num_arcs, num_ids, num_final_ids, at if at <= len(words) else -1


@njit(cache=True, nogil=True)
def unpack(
    words: np.ndarray, num_states: int, num_arcs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Read a state-level lattice.

    Args:
        words: int32, starting behind the header.
        num_states: number of states.
        num_arcs: as `scan` says.

    Returns:
        int32[A, 4] source, target, transition-id, word; float32[A, 2] graph and
        acoustic costs; float32[S, 2] final costs; whether all targets exist.
    """
    floats = words.view(np.float32)
    arcs = np.empty((num_arcs, 4), np.int32)
    costs = np.empty((num_arcs, 2), np.float32)
    final_costs = np.empty((num_states, 2), np.float32)
    at, arc = 0, 0
    is_sound = True
    for state in range(num_states):
        final_costs[state] = floats[at : at + 2]
        degree = words[at + 2]
        at += 4
        for _ in range(degree):
            arcs[arc, 0], arcs[arc, 1] = state, words[at + 4]
            arcs[arc, 2], arcs[arc, 3] = words[at], words[at + 1]
            costs[arc] = floats[at + 2 : at + 4]
            is_sound = is_sound and bool(0 <= words[at + 4] < num_states)
            at += 5
            arc += 1
    return arcs, costs, final_costs, is_sound


@njit(cache=True, nogil=True)
def unpack_compact(
    words: np.ndarray, num_states: int, sizes: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray, Arrays, np.ndarray, Arrays, bool]:
    """Read a compact lattice.

    Args:
        words: int32, starting behind the header.
        num_states: number of states.
        sizes: arcs and transition-ids, as `scan` says.

    Returns:
        int32[A, 3] source, target, word; float32[A, 2] graph and acoustic costs;
        offsets int64[A + 1] and transition-ids of the arcs; float32[S, 2] final costs;
        offsets int64[S + 1] and transition-ids of the states; whether all targets
        exist.
    """
    num_arcs, num_ids, num_final_ids = sizes
    floats = words.view(np.float32)
    arcs = np.empty((num_arcs, 3), np.int32)
    costs = np.empty((num_arcs, 2), np.float32)
    begin, ids = np.zeros(num_arcs + 1, np.int64), np.empty(num_ids, np.int32)
    final_costs = np.empty((num_states, 2), np.float32)
    final_begin = np.zeros(num_states + 1, np.int64)
    final_ids = np.empty(num_final_ids, np.int32)
    at, arc = 0, 0
    is_sound = True
    for state in range(num_states):
        final_costs[state] = floats[at : at + 2]
        length = words[at + 2]
        final_begin[state + 1] = final_begin[state] + length
        final_ids[final_begin[state] : final_begin[state + 1]] = words[
            at + 3 : at + 3 + length
        ]
        degree = words[at + 3 + length]
        at += 5 + length
        for _ in range(degree):
            length = words[at + 4]
            target = words[at + 5 + length]
            arcs[arc, 0], arcs[arc, 1], arcs[arc, 2] = state, target, words[at + 1]
            costs[arc] = floats[at + 2 : at + 4]
            begin[arc + 1] = begin[arc] + length
            ids[begin[arc] : begin[arc + 1]] = words[at + 5 : at + 5 + length]
            is_sound = is_sound and bool(0 <= target < num_states)
            at += 6 + length
            arc += 1
    return arcs, costs, (begin, ids), final_costs, (final_begin, final_ids), is_sound


@njit(cache=True, nogil=True)
def pack(
    arc_begin: np.ndarray, columns: np.ndarray, costs: np.ndarray, finals: np.ndarray
) -> np.ndarray:
    """Write the words of a state-level lattice, int32.

    Args:
        arc_begin: int64[S + 1].
        columns: int32[3, A]: target, transition-id, word.
        costs: int32[2, A], the bits of graph and acoustic costs.
        finals: int32[2, S], likewise.
    """
    num_states, num_arcs = finals.shape[1], columns.shape[1]
    words = np.empty(4 * num_states + 5 * num_arcs, np.int32)
    at = 0
    for state in range(num_states):
        words[at : at + 2] = finals[:, state]
        words[at + 2] = arc_begin[state + 1] - arc_begin[state]
        words[at + 3] = 0
        at += 4
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            words[at] = columns[1, arc]
            words[at + 1] = columns[2, arc]
            words[at + 2 : at + 4] = costs[:, arc]
            words[at + 4] = columns[0, arc]
            at += 5
    return words


@njit(cache=True, nogil=True)
def pack_compact(
    arc_begin: np.ndarray,
    columns: np.ndarray,
    costs: np.ndarray,
    strings: Arrays,
    finals: np.ndarray,
    final_strings: Arrays,
) -> np.ndarray:
    """Write the words of a compact lattice, int32.

    Args:
        arc_begin: int64[S + 1].
        columns: int32[2, A]: target, word.
        costs: int32[2, A], the bits of graph and acoustic costs.
        strings: offsets int64[A + 1] and transition-ids of the arcs.
        finals: int32[2, S], likewise.
        final_strings: offsets int64[S + 1] and transition-ids of the states.
    """
    begin, ids = strings
    final_begin, final_ids = final_strings
    num_states, num_arcs = finals.shape[1], columns.shape[1]
    size = 5 * num_states + len(final_ids) + 6 * num_arcs + len(ids)
    words = np.empty(size, np.int32)
    at = 0
    for state in range(num_states):
        words[at : at + 2] = finals[:, state]
        length = final_begin[state + 1] - final_begin[state]
        words[at + 2] = length
        at += 3
        words[at : at + length] = final_ids[final_begin[state] : final_begin[state + 1]]
        words[at + length] = arc_begin[state + 1] - arc_begin[state]
        words[at + length + 1] = 0
        at += length + 2
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            length = begin[arc + 1] - begin[arc]
            words[at] = columns[1, arc]
            words[at + 1] = columns[1, arc]
            words[at + 2 : at + 4] = costs[:, arc]
            words[at + 4] = length
            words[at + 5 : at + 5 + length] = ids[begin[arc] : begin[arc + 1]]
            words[at + 5 + length] = columns[0, arc]
            at += 6 + length
    return words
