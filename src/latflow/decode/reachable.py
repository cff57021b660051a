"""Labels that can come next from each state of a transducer, as ranges.

The *next* labels of a state are the first that its paths have. They are sets of
thousands of words near the root of a lexicon; where words are numbered as a walk in
depth first meets them, those behind a node of its tree are neighbours, and a set is a
few ranges.

Source: Allauzen, Riley & Schalkwyk 2009, section 3 (label reachability).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.decode.parts import ADDED, BACK_OFF, NOTHING
from latflow.fst.determinize import enlarged
from latflow.jit import njit


class Reachable(NamedTuple):
    """Next labels of the states of a transducer.

    Attributes:
        set_of: int32[S], number of each state's set.
        begin: int64[sets + 1], where the ranges of each set begin.
        ranges: int32[ranges, 2], first and last label, ascending, with gaps between.
        can_back_off: bool[sets], whether BACK_OFF is among the labels.
        can_add: bool[sets], likewise ADDED.
    """

    set_of: np.ndarray
    begin: np.ndarray
    ranges: np.ndarray
    can_back_off: np.ndarray
    can_add: np.ndarray


def spans(found: Reachable) -> np.ndarray:
    """Return the first and the last next label of each state, int32[S, 2].

    The first is -1 where the state can back off, or words can be added; it is above the
    last where nothing comes next.
    """
    first, last = found.begin[:-1], found.begin[1:]
    span = np.empty((len(first), 2), np.int32)
    span[:] = 1, 0
    has_any = first < last
    span[has_any, 0] = found.ranges[first[has_any], 0]
    span[has_any, 1] = found.ranges[last[has_any] - 1, 1]
    span[found.can_back_off | found.can_add, 0] = -1
    return span[found.set_of]


# Labels that are not words, as bits.
_BACKS_OFF, _ADDS = 1, 2


@njit(cache=True, nogil=True)
def depth_first_words(
    start: int, arc_begin: np.ndarray, next_state: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """Return the words of a transducer as a walk in depth first meets them.

    Args:
        start: where the walk begins.
        arc_begin: int64[S + 1].
        next_state: int32[A].
        words: int32[A], of each arc; 0 or less for none.

    Returns:
        int32[words].
    """
    num_states = len(arc_begin) - 1
    found = np.empty(1024, np.int32)
    num_found = 0
    highest = 0
    for word in words:
        highest = max(highest, word)
    is_found = np.zeros(highest + 1, np.bool_)
    is_met = np.zeros(num_states, np.bool_)
    at = arc_begin[:-1].copy()  # the arc to follow next, of each state
    path = np.empty(num_states, np.int32)
    depth = 1
    path[0] = start
    is_met[start] = True
    while depth > 0:
        state = path[depth - 1]
        if at[state] == arc_begin[state + 1]:
            depth -= 1
            continue
        arc = at[state]
        at[state] += 1
        word = words[arc]
        if word > 0 and not is_found[word]:
            is_found[word] = True
            found = enlarged(found, num_found + 1)
            found[num_found] = word
            num_found += 1
        if not is_met[next_state[arc]]:
            is_met[next_state[arc]] = True
            path[depth] = next_state[arc]
            depth += 1
    return found[:num_found]


@njit(cache=True, nogil=True)
def next_labels(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    label: np.ndarray,
    is_final: np.ndarray,
    end: int,
) -> Reachable:
    """Find the next labels of all states.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        label: int32[A], 0 or more; NOTHING, BACK_OFF or ADDED.
        is_final: bool[S].
        end: label of the end, which comes next where a state is final.
    """
    members, component_begin = _components(arc_begin, next_state, label)
    set_of = np.full(len(arc_begin) - 1, -1, np.int32)
    begin = np.zeros(len(component_begin), np.int64)
    other = np.zeros(len(component_begin), np.int8)
    ranges = np.empty((len(set_of), 2), np.int32)
    num_sets = 0
    for component in range(len(component_begin) - 1):
        states = members[component_begin[component] : component_begin[component + 1]]
        rows, others, same = _gather(
            states,
            (arc_begin, next_state, label),
            (set_of, begin, ranges, other),
            is_final,
            end,
        )
        if same < 0:
            same = num_sets
            used = begin[num_sets]
            ranges = _with_rows(ranges, used + len(rows))
            for r in range(len(rows)):
                ranges[used + r, 0], ranges[used + r, 1] = rows[r, 0], rows[r, 1]
            begin[num_sets + 1] = used + len(rows)
            other[num_sets] = others
            num_sets += 1
        for state in states:
            set_of[state] = same
    return Reachable(
        set_of,
        begin[: num_sets + 1].copy(),
        ranges[: begin[num_sets]].copy(),
        other[:num_sets] & _BACKS_OFF > 0,
        other[:num_sets] & _ADDS > 0,
    )


@njit(cache=True, nogil=True)
def _components(
    arc_begin: np.ndarray, next_state: np.ndarray, label: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the states of each cycle of arcs without labels; others are by themselves.

    Those that arcs without labels lead to come first (Tarjan's algorithm, with its own
    stack).

    Returns:
        (int32[S], states by component; int64[components + 1], where each begins).
    """
    num_states = len(arc_begin) - 1
    members = np.empty(num_states, np.int32)
    begin, num_components = np.zeros(num_states + 1, np.int64), 0
    order = np.full(num_states, -1, np.int32)  # in which states are met
    lowest = np.empty(num_states, np.int32)  # met first, of those that lead back here
    is_open = np.zeros(num_states, np.bool_)
    at = arc_begin[:-1].copy()
    path, opened = np.empty(num_states, np.int32), np.empty(num_states, np.int32)
    num_met, num_open = 0, 0
    for root in range(num_states):
        depth = 0
        if order[root] < 0:
            path[0], depth = root, 1
        while depth > 0:
            state = path[depth - 1]
            if order[state] < 0:
                order[state] = lowest[state] = num_met
                num_met += 1
                opened[num_open], is_open[state] = state, True
                num_open += 1
            if at[state] < arc_begin[state + 1]:
                to = next_state[at[state]]
                if label[at[state]] == NOTHING and order[to] < 0:
                    path[depth] = to
                    depth += 1
                    continue
                if label[at[state]] == NOTHING and is_open[to]:
                    lowest[state] = min(lowest[state], lowest[to])
                at[state] += 1
                continue
            depth -= 1
            if lowest[state] == order[state]:
                first = num_open
                while is_open[state]:  # it was opened before the others
                    num_open -= 1
                    is_open[opened[num_open]] = False
                begin[num_components + 1] = begin[num_components] + first - num_open
                members[begin[num_components] : begin[num_components + 1]] = opened[
                    num_open:first
                ]
                num_components += 1
    return members, begin[: num_components + 1]


@njit(cache=True, nogil=True)
def _gather(
    members: np.ndarray,
    arcs: tuple[np.ndarray, np.ndarray, np.ndarray],
    known: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    is_final: np.ndarray,
    end: int,
) -> tuple[np.ndarray, int, int]:
    """Return the ranges of a component, its other labels, and an equal set or -1.

    Args:
        members: states of the component.
        arcs: arc_begin, next_state, label.
        known: set_of, begin, ranges, other labels of the components before.
        is_final: of all states.
        end: label of the end.
    """
    arc_begin, next_state, label = arcs
    set_of, begin, ranges, other = known
    rows = np.empty((8, 2), np.int32)
    used = 0
    others, last_set, num_sets, num_own = 0, -1, 0, 0
    for state in members:
        if is_final[state]:
            rows = _with_rows(rows, used + 1)
            rows[used, 0] = rows[used, 1] = end
            used += 1
            num_own += 1
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            if label[arc] in (BACK_OFF, ADDED):
                others |= _BACKS_OFF if label[arc] == BACK_OFF else _ADDS
                num_own += 1
            elif label[arc] != NOTHING:
                rows = _with_rows(rows, used + 1)
                rows[used, 0] = rows[used, 1] = label[arc]
                used += 1
                num_own += 1
            elif set_of[next_state[arc]] not in (-1, last_set):
                last_set = int(set_of[next_state[arc]])
                num_sets += 1
                others |= int(other[last_set])
                for r in range(begin[last_set], begin[last_set + 1]):
                    rows = _with_rows(rows, used + 1)
                    rows[used, 0], rows[used, 1] = ranges[r, 0], ranges[r, 1]
                    used += 1
    if num_sets == 1 and num_own == 0:
        return rows[:0], others, last_set
    return _joined(rows[:used]), others, -1


@njit(cache=True, nogil=True)
def _joined(rows: np.ndarray) -> np.ndarray:
    """Return ranges in order, neighbours and those that overlap as one."""
    order = np.argsort(rows[:, 0])
    joined = np.empty_like(rows)
    used = 0
    for i in order:
        if used > 0 and rows[i, 0] <= joined[used - 1, 1] + 1:
            joined[used - 1, 1] = max(joined[used - 1, 1], rows[i, 1])
        else:
            joined[used, 0], joined[used, 1] = rows[i, 0], rows[i, 1]
            used += 1
    return joined[:used]


@njit(cache=True, nogil=True)
def _with_rows(rows: np.ndarray, needed: int) -> np.ndarray:
    """Return pairs of numbers with space for more, at least doubled if need be."""
    if needed <= len(rows):
        return rows
    grown = np.empty((max(needed, 2 * len(rows)), 2), np.int32)
    for n in range(len(rows)):
        grown[n, 0], grown[n, 1] = rows[n, 0], rows[n, 1]
    return grown
