"""Composition of a transducer with a grammar, looking ahead at the words to come.

A state of the result is a pair of states, and what the filter remembers:

* the grammar's epsilons (back-off) are taken before those of the transducer, so that no
  path is there twice;
* an arc without a word is taken only if the grammar has one of the words that can come
  next, at this state, without back-off;
* the costs of these words, summed as probabilities, are charged at once: what is
  charged ahead is part of the state, and is taken off when words or epsilons of the
  grammar follow;
* if one word alone can follow, it is given out at once: the state is that behind it in
  the grammar, and the word is part of the state until the transducer has it too.

Costs of paths are those of plain composition.

Public: `compose_lookahead`.

Source: OpenFst `lookahead-filter.h` (PushLabels, PushWeights and LookAhead filters on
AltSequence), which `ComposeFst` uses for these types, and so Vosk; except that costs
charged ahead are rounded where they are charged too, not only where they are taken off.
Allauzen, Riley, Schalkwyk 2009, "A generalized composition algorithm for weighted
finite-state transducers".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.errors import UserError
from latflow.fst.determinize import enlarged, log_add
from latflow.fst.graph import Graph, state_records
from latflow.fst.lookahead import Reach
from latflow.fst.openfst import ARC
from latflow.jit import njit

_ROUNDING = 1024  # parts of 1 in which costs charged ahead are counted
_DIRECT = 16  # up to so many costs are summed one by one
_CANCELLED = 1e-9  # share of a cumulated sum below which a difference is not exact
_NONE = -1
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_FIRST_STATES, _FIRST_SLOTS = 1 << 12, 1 << 14
_H, _G, _LABEL, _CHARGED = 0, 1, 2, 3  # columns of states

#: A way out of a pair of states: an arc, and the state that it leads to.
_MOVE = np.dtype(
    [
        ("ilabel", "<i4"),
        ("olabel", "<i4"),
        ("weight", "<f8"),
        ("h", "<i4"),
        ("g", "<i4"),
        ("label", "<i4"),
        ("charged", "<i4"),
    ]
)


class _Parts(NamedTuple):
    """The arrays of what is composed.

    `sums` has, for each arc of the grammar, the probabilities of the arcs of its state
    up to it.
    """

    begin: np.ndarray
    arcs: np.ndarray
    final: np.ndarray
    reach_begin: np.ndarray
    intervals: np.ndarray
    final_label: int
    g_begin: np.ndarray
    g_arcs: np.ndarray
    g_final: np.ndarray
    sums: np.ndarray


def compose_lookahead(
    transducer: Graph, reach: Reach, grammar: Graph, *, most_arcs: int
) -> Graph:
    """Compose.

    Args:
        transducer: sorted by output label, as is `reach`, see
            `latflow.fst.lookahead.load_lookahead`.
        reach: of its states.
        grammar: sorted by input label.
        most_arcs: bound on the arcs of the result.

    Returns:
        Input labels are the transducer's, output labels the grammar's; states are in
        the order in which they are found from the start.

    Raises:
        UserError: the result has more arcs than `most_arcs`, or the arcs of a part are
            not sorted.
    """
    if not transducer.properties.is_olabel_sorted:
        raise UserError("the arcs of HCL are not sorted by word")
    if not grammar.properties.is_ilabel_sorted:
        raise UserError("the arcs of G are not sorted by word")
    parts = _Parts(
        transducer.arc_begin,
        transducer.arcs,
        transducer.final,
        reach.begin,
        reach.intervals,
        reach.final_label,
        grammar.arc_begin,
        grammar.arcs,
        grammar.final,
        _cumulated(grammar.arc_begin, grammar.arcs),
    )
    begin, final, arcs = _compose(
        parts, transducer.start, grammar.start, np.int64(most_arcs)
    )
    if len(arcs) > most_arcs:
        raise UserError(
            f"HCL and G composed have more than {most_arcs:,} arcs: more than "
            f"{most_arcs * 20 >> 30} GB",
            remedy="make G smaller by pruning",
        )
    return Graph(0, state_records(begin, final, arcs), arcs)


@njit(cache=True, nogil=True)
def _cumulated(begin: np.ndarray, arcs: np.ndarray) -> np.ndarray:
    """Return the sums of `_Parts`."""
    sums = np.empty(len(arcs))
    for state in range(len(begin) - 1):
        total = 0.0
        for arc in range(begin[state], begin[state + 1]):
            total += np.exp(-arcs[arc]["weight"])
            sums[arc] = total
    return sums


@njit(cache=True, nogil=True)
def _lower_bound(arcs: np.ndarray, low: int, high: int, label: int) -> int:
    """Return the first of some arcs whose input label is `label` or more."""
    while low < high:
        middle = (low + high) // 2
        if arcs[middle]["ilabel"] < label:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _can_reach(parts: _Parts, state: int, label: int) -> bool:
    """Tell whether a label can come next from a state of the transducer."""
    first, high = parts.reach_begin[state], parts.reach_begin[state + 1]
    low = first
    while low < high:
        middle = (low + high) // 2
        if parts.intervals[middle, 0] <= label:
            low = middle + 1
        else:
            high = middle
    return low > first and label < parts.intervals[low - 1, 1]


@njit(cache=True, nogil=True)
def _sum(parts: _Parts, state_begin: int, low: int, high: int) -> float:
    """Return the summed cost of some arcs of a state of the grammar."""
    if high - low > _DIRECT:
        upper = parts.sums[high - 1]
        total = upper - (parts.sums[low - 1] if low > state_begin else 0.0)
        if total > _CANCELLED * upper:
            return -np.log(total)
    cost = np.inf
    for arc in range(low, high):
        cost = log_add(cost, np.float64(parts.g_arcs[arc]["weight"]))
    return cost


@njit(cache=True, nogil=True)
def _ahead(parts: _Parts, h: int, g: int) -> tuple[bool, int, float]:
    """Look from a state of the transducer at the arcs of one of the grammar.

    Returns:
        (whether one of them can follow, or the end; the arc if it is the only one, or
        -1; the summed cost of all, 0 for an only one).
    """
    begin, end = parts.g_begin[g], parts.g_begin[g + 1]
    low, high = parts.reach_begin[h], parts.reach_begin[h + 1]
    first, behind, cost = _NONE, _NONE, np.inf
    if 2 * (end - begin) < high - low:
        for arc in range(begin, end):
            label = parts.g_arcs[arc]["ilabel"]
            if label and _can_reach(parts, h, label):
                first = arc if first == _NONE else first
                behind = arc + 1
                cost = log_add(cost, np.float64(parts.g_arcs[arc]["weight"]))
    else:
        at = begin
        for interval in range(low, high):
            at = _lower_bound(parts.g_arcs, at, end, parts.intervals[interval, 0])
            to = _lower_bound(parts.g_arcs, at, end, parts.intervals[interval, 1])
            if to > at:
                first = at if first == _NONE else first
                behind = to
                cost = log_add(cost, _sum(parts, begin, at, to))
            at = to
    ends = parts.g_final[g] < np.inf and _can_reach(parts, h, parts.final_label)
    if not ends and behind - first == 1:
        return True, first, 0.0
    if ends:
        cost = log_add(cost, np.float64(parts.g_final[g]))
    return cost < np.inf, _NONE, cost


@njit(cache=True, nogil=True)
def _put(
    moves: np.ndarray,
    at: int,
    labels: tuple[int, int],
    weight: float,
    target: tuple[int, int, int, int],
) -> np.ndarray:
    """Write a move, to state (h, g, label, charged); returns the array, enlarged."""
    moves = enlarged(moves, at + 1)
    moves[at]["ilabel"], moves[at]["olabel"] = labels
    moves[at]["weight"] = weight
    moves[at]["h"], moves[at]["g"] = target[0], target[1]
    moves[at]["label"], moves[at]["charged"] = target[2], target[3]
    return moves


@njit(cache=True, nogil=True)
def _expand_pushed(
    parts: _Parts, state: np.ndarray, moves: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return the moves of a state whose word is given out already, and their number."""
    h, g, label, count = state[_H], state[_G], state[_LABEL], 0
    first, last = parts.begin[h], parts.begin[h + 1]
    for arc in range(first, last):
        found = parts.arcs[arc]
        target = found["next_state"]
        if found["olabel"] == label:
            pending = np.int32(_NONE)
        elif found["olabel"] == 0 and (
            last - first == 1 or _can_reach(parts, target, label)
        ):
            pending = label
        else:
            continue
        labels, end = (found["ilabel"], np.int32(0)), (target, g, pending, np.int32(0))
        moves = _put(moves, count, labels, np.float64(found["weight"]), end)
        count += 1
    return moves, count


@njit(cache=True, nogil=True)
def _expand(
    parts: _Parts, state: np.ndarray, moves: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return the moves of a state, and their number.

    The last bit of what is charged tells that epsilons of the grammar may not follow.
    """
    h, g, count = state[_H], state[_G], 0
    zero, none = np.int32(0), np.int32(_NONE)
    charged, is_after = (state[_CHARGED] >> 1) / _ROUNDING, state[_CHARGED] & 1
    begin, end = parts.g_begin[g], parts.g_begin[g + 1]
    num_epsilons = _lower_bound(parts.g_arcs, begin, end, 1) - begin
    for arc in range(begin, begin + (0 if is_after else num_epsilons)):
        found = parts.g_arcs[arc]
        to = (h, found["next_state"], none, zero)
        weight = found["weight"] - charged
        moves = _put(moves, count, (zero, found["olabel"]), weight, to)
        count += 1
    is_way_on = end - begin > num_epsilons or parts.g_final[g] < np.inf
    follows = np.int32(num_epsilons > 0)
    for arc in range(parts.begin[h], parts.begin[h + 1]):
        found = parts.arcs[arc]
        target, word, label = found["next_state"], found["olabel"], found["ilabel"]
        weight = found["weight"] - charged
        if word:
            at = _lower_bound(parts.g_arcs, begin, end, word)
            while at < end and parts.g_arcs[at]["ilabel"] == word:
                match = parts.g_arcs[at]
                to = (target, match["next_state"], none, zero)
                cost = weight + match["weight"]
                moves = _put(moves, count, (label, match["olabel"]), cost, to)
                count, at = count + 1, at + 1
            continue
        if not is_way_on:
            continue
        can_follow, only, cost = _ahead(parts, target, g)
        if not can_follow:
            continue
        if only >= 0:
            match = parts.g_arcs[only]
            to = (target, match["next_state"], match["ilabel"], zero)
            cost, olabel = np.float64(match["weight"]), match["olabel"]
        else:
            ahead = np.int32(np.floor(cost * _ROUNDING + 0.5))
            to = (target, g, none, np.int32(2 * ahead + follows))
            cost, olabel = ahead / _ROUNDING, zero
        moves = _put(moves, count, (label, olabel), weight + cost, to)
        count += 1
    return moves, count


@njit(cache=True, nogil=True)
def _slot(slots: np.ndarray, states: np.ndarray, move: np.ndarray) -> int:
    """Return where the target of a move stands in the hash, or may be put."""
    key = np.uint64(np.uint32(move["h"])) * _PRIME
    key = (key ^ np.uint64(np.uint32(move["g"]))) * _PRIME
    key = (key ^ np.uint64(np.uint32(move["label"]))) * _PRIME
    key = (key ^ np.uint64(np.uint32(move["charged"]))) * _PRIME
    mask = len(slots) - 1
    at = np.int64(key >> np.uint64(32)) & mask
    while slots[at] >= 0:
        found = states[slots[at]]
        if (
            found[_H] == move["h"]
            and found[_G] == move["g"]
            and found[_LABEL] == move["label"]
            and found[_CHARGED] == move["charged"]
        ):
            break
        at = (at + 1) & mask
    return int(at)


@njit(cache=True, nogil=True)
def _write(move: np.ndarray, state: np.ndarray) -> None:
    """Write the target of a move as a state."""
    state[_H], state[_G] = move["h"], move["g"]
    state[_LABEL], state[_CHARGED] = move["label"], move["charged"]


@njit(cache=True, nogil=True)
def _rehashed(states: np.ndarray, count: int, size: int) -> np.ndarray:
    """Return a hash of so many slots, with the first states in it."""
    slots = np.full(size, _NONE, np.int32)
    move = np.empty(1, _MOVE)
    for state in range(count):
        move[0]["h"], move[0]["g"] = states[state, _H], states[state, _G]
        move[0]["label"] = states[state, _LABEL]
        move[0]["charged"] = states[state, _CHARGED]
        slots[_slot(slots, states, move[0])] = state
    return slots


@njit(cache=True, nogil=True)
def _rows(states: np.ndarray, needed: int) -> np.ndarray:
    """Return the states with room for so many rows."""
    if needed <= len(states):
        return states
    grown = np.empty((max(needed, 2 * len(states)), 4), np.int32)
    grown[: len(states)] = states
    return grown


@njit(cache=True, nogil=True)
def _compose(
    parts: _Parts, h: int, g: int, most_arcs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return begin, final and arcs of the result; more than `most_arcs`: it stopped."""
    states = np.empty((_FIRST_STATES, 4), np.int32)
    states[0, _H], states[0, _G] = h, g
    states[0, _LABEL], states[0, _CHARGED] = _NONE, 0
    slots = _rehashed(states, 1, _FIRST_SLOTS)
    begin = np.zeros(_FIRST_STATES, np.int64)
    final = np.empty(_FIRST_STATES, np.float32)
    arcs = np.empty(_FIRST_STATES, ARC)
    moves = np.empty(_FIRST_STATES, _MOVE)
    count, num_arcs, state = 1, 0, 0
    while state < count and num_arcs <= most_arcs:
        final[state] = np.inf
        if states[state, _LABEL] == _NONE:
            moves, num_moves = _expand(parts, states[state], moves)
            cost = parts.final[states[state, _H]] + parts.g_final[states[state, _G]]
            final[state] = cost - (states[state, _CHARGED] >> 1) / _ROUNDING
        else:
            moves, num_moves = _expand_pushed(parts, states[state], moves)
        states = _rows(states, count + num_moves)
        begin = enlarged(begin, count + num_moves + 1)
        final = enlarged(final, count + num_moves)
        arcs = enlarged(arcs, num_arcs + num_moves)
        if 2 * (count + num_moves) > len(slots):
            size = len(slots)
            while size < 4 * (count + num_moves):
                size *= 2
            slots = _rehashed(states, count, size)
        for n in range(num_moves):
            at = _slot(slots, states, moves[n])
            if slots[at] < 0:
                _write(moves[n], states[count])
                slots[at] = count
                count += 1
            arcs[num_arcs]["ilabel"] = moves[n]["ilabel"]
            arcs[num_arcs]["olabel"] = moves[n]["olabel"]
            arcs[num_arcs]["weight"] = moves[n]["weight"]
            arcs[num_arcs]["next_state"] = slots[at]
            num_arcs += 1
        state += 1
        begin[state] = num_arcs
    return begin[: state + 1], final[:state], arcs[:num_arcs]
