"""The states and arcs of a binary lattice, as 32-bit words.

Behind the header every part of Kaldi's lattice files is a multiple of four bytes. A
state is its final weight, the number of its arcs (two words) and the arcs; an arc is
input label, output label, weight, target. A weight is the graph and the acoustic cost;
in a compact lattice a string of transition-ids follows, its length first.

Public: `scan`, `spread`, `KINDS`, `MAGIC`, `Spread`.

Source: OpenFst `fst/vector-fst.h`, Kaldi `fstext/lattice-weight.h`; the spreading of
compact arcs: `fstext/lattice-utils-inl.h` (`ConvertLattice`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

MAGIC = (2125659606).to_bytes(4, "little")  # OpenFst's file mark
KINDS = {"lattice4": False, "compactlattice44": True}  # arc type -> is it compact

# int32[A, 4] source, target, transition-id, word; float32[A, 2] costs; float32[S, 2]
# final costs; start.
Spread = tuple[np.ndarray, np.ndarray, np.ndarray, int]


@njit(cache=True, nogil=True)
def scan(
    words: np.ndarray,
    num_states: int,
    is_compact: bool,  # noqa: FBT001
) -> tuple[int, int, int]:
    """Measure a lattice.

    Args:
        words: int32, starting behind the header.
        num_states: number of states.
        is_compact: whether weights have strings.

    Returns:
        (arcs once spread, states that spreading adds, words of the lattice); -1 in the
        last place if it is longer than `words`.
    """
    num_arcs, num_extra, at = 0, 0, 0
    for _ in range(num_states):
        string = 0
        if is_compact:
            if at + 2 >= len(words):
                return 0, 0, -1
            string = words[at + 2]
            num_arcs += string
            num_extra += string
        at += 2 + (1 + string if is_compact else 0)
        if string < 0 or at + 1 >= len(words):
            return 0, 0, -1
        degree = words[at]
        at += 2
        if degree < 0:
            return 0, 0, -1
        if not is_compact:
            at += 5 * degree
            num_arcs += degree
            continue
        for _ in range(degree):
            if at + 4 >= len(words) or words[at + 4] < 0:
                return 0, 0, -1
            string = words[at + 4]
            num_arcs += max(1, string)
            num_extra += max(1, string) - 1
            at += 6 + string
    return num_arcs, num_extra, at if at <= len(words) else -1


@njit(cache=True, nogil=True)
def spread(
    words: np.ndarray,
    sizes: tuple[int, int, int],
    is_compact: bool,  # noqa: FBT001
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Read a lattice, giving each transition-id of a compact arc an arc of its own.

    The first of them carries the word and the weight. A final state with a string ends
    in a row of arcs to a new final state.

    Args:
        words: int32, starting behind the header.
        sizes: number of states; arcs and extra states as `scan` says.
        is_compact: whether weights have strings.

    Returns:
        int32[A, 4] source, target, transition-id, word; float32[A, 2] graph and
        acoustic costs; float32[S, 2] final costs; whether all targets exist.
    """
    num_states, num_arcs, num_extra = sizes
    floats = words.view(np.float32)
    arcs = np.zeros((num_arcs, 4), np.int32)
    costs = np.zeros((num_arcs, 2), np.float32)
    final_costs = np.full((num_states + num_extra, 2), np.inf, np.float32)
    at, arc, extra = 0, 0, num_states
    is_sound = True
    for state in range(num_states):
        final_graph, final_acoustic = floats[at], floats[at + 1]
        string = words[at + 2] if is_compact else 0
        first = at + 3
        at += 2 + (1 + string if is_compact else 0)
        degree = words[at]
        at += 2
        if string == 0:
            final_costs[state, 0] = final_graph
            final_costs[state, 1] = final_acoustic
        else:
            end = extra + string - 1
            ids = words[first : first + string]
            final_costs[end] = 0.0
            costs[arc, 0], costs[arc, 1] = final_graph, final_acoustic
            arc, extra = _chain(arcs, arc, extra, ids, (state, end, 0))
            extra += 1
        for _ in range(degree):
            costs[arc, 0], costs[arc, 1] = floats[at + 2], floats[at + 3]
            if is_compact:
                string = words[at + 4]
                ids, label = words[at + 5 : at + 5 + string], words[at + 1]
                target = words[at + 5 + string]
                at += 6 + string
            else:
                ids, label, target = words[at : at + 1], words[at + 1], words[at + 4]
                at += 5
            is_sound = is_sound and bool(0 <= target < num_states)
            arc, extra = _chain(arcs, arc, extra, ids, (state, target, label))
    return arcs, costs, final_costs, is_sound


@njit(cache=True, nogil=True)
def _chain(
    arcs: np.ndarray, arc: int, extra: int, ids: np.ndarray, ends: tuple[int, int, int]
) -> tuple[int, int]:
    """Add a row of arcs with these transition-ids; return the next arc and state.

    Args:
        arcs: int32[A, 4], filled from row `arc` on.
        arc: next free row.
        extra: next free state.
        ids: transition-ids; one arc without any if empty.
        ends: source and target of the row, and the word of its first arc.
    """
    state, target, label = ends
    length = max(1, len(ids))
    for k in range(length):
        is_last = k == length - 1
        there = target if is_last else extra
        arcs[arc, 0], arcs[arc, 1] = state, there
        arcs[arc, 2] = ids[k] if len(ids) else 0
        arcs[arc, 3] = label if k == 0 else 0
        state = there
        arc += 1
        extra += 0 if is_last else 1
    return arc, extra
