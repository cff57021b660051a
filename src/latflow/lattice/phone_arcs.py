"""Phones of paths: a lattice taken apart until each state knows its phone's beginning.

In a state-level lattice paths with different phone boundaries meet in one state. For
what depends on whole phones (their accuracy, from first to last frame) each state is
split by what the paths to it have in hand: the phone, the frame it began at, and, once
the phone's last HMM state has been left, which state that was (with Kaldi's reordered
transitions its self-loops still follow). A phone is complete where the next one begins,
or at the end of the lattice.

Where the lattice has few boundary times for a phone, as is usual, states hardly
multiply. The expansion does not depend on scores.

Source: Povey 2003, "Discriminative training for large vocabulary speech recognition",
section 4.4 (phone-marked lattices); Kaldi `hmm/hmm-utils.cc` (`SplitToPhones`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit
from latflow.lattice.lattice import Lattice

_Labels = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class PhoneArcs:
    """The expanded lattice; N states, the last an added end; M arcs.

    Attributes:
        arc_begin: int64[N + 1]; states are in topological order, state 0 is the start.
        next_state: int32[M], higher than the source.
        arc: int32[M], the arc of the lattice; A + s for the arc to the end from final
            state s.
        phone: int32[M], the phone that is complete when the arc is taken; 0 for none.
        first: int32[M], its first frame; -1 where that does not matter.
        last: int32[M], one past its last frame.
    """

    arc_begin: np.ndarray
    next_state: np.ndarray
    arc: np.ndarray
    phone: np.ndarray
    first: np.ndarray
    last: np.ndarray


class TooManyArcsError(Exception):
    """The expanded lattice has more arcs than it may have."""


def expand(
    lattice: Lattice,
    model: TransitionModel,
    *,
    untimed: Sequence[int] = (),
    max_arcs: int | None = None,
) -> PhoneArcs:
    """Split the states of a lattice by the phone in hand.

    Args:
        lattice: raw; of a graph with reordered transitions (Kaldi's default).
        model: what its transition-ids mean.
        untimed: phones whose beginning does not matter; their `first` is -1. Silence,
            which can begin at many frames, splits states most.
        max_arcs: most arcs of the result, but for those to the end; None for any
            number.

    Raises:
        TooManyArcsError: there are more; memory for no more was used.
    """
    is_timed = ~np.isin(model.phone, list(untimed))
    is_final = np.isfinite(lattice.final_graph_cost)
    is_final &= np.isfinite(lattice.final_acoustic_cost)
    begin, ids, frame = lattice.arc_begin, lattice.transition_id, lattice.frame
    labels = model.phone, model.state, model.is_self_loop, model.is_final, is_timed
    limit = np.iinfo(np.int64).max if max_arcs is None else max_arcs
    first, keys, after, reached = _splits(
        begin, lattice.next_state, ids, frame, labels, limit
    )
    if len(reached) > limit:
        raise TooManyArcsError
    splits = first, keys, after, _numbers(first, after), reached
    num_arcs = int(_lengths(first, after) @ (np.diff(begin) + is_final))
    bounds, table = _split_arcs(begin, ids, frame, is_final, labels, splits, num_arcs)
    columns = np.ascontiguousarray(table.T)
    return PhoneArcs(bounds, *columns)


def phones_of_alignment(
    alignment: np.ndarray, model: TransitionModel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return phones of one path, by the same rule.

    Args:
        alignment: transition-ids, int32[T].
        model: what they mean.

    Returns:
        (phone, first frame, one past the last frame), each int32[N].
    """
    num_frames = len(alignment)
    arcs = np.zeros((num_frames, 4), np.int32)
    arcs[:, 0] = np.arange(num_frames)
    arcs[:, 1] = arcs[:, 0] + 1
    arcs[:, 2] = alignment
    finals = np.full((num_frames + 1, 2), np.inf, np.float32)
    finals[-1] = 0.0
    path = Lattice.from_arcs(arcs, np.zeros((num_frames, 2), np.float32), finals)
    found = expand(path, model)
    done = found.phone > 0
    return found.phone[done], found.first[done], found.last[done]


@njit(cache=True, nogil=True)
def _splits(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    transition_id: np.ndarray,
    frame: np.ndarray,
    labels: _Labels,
    limit: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find out what the paths to each state can have in hand.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        transition_id: int32[A].
        frame: int32[S].
        labels: of transition-ids: phone, transition-state, is it a self-loop, does it
            leave the phone, does its phone's beginning matter.
        limit: number of arcs between splits; with the first state that has more of
            them the search ends.

    Returns:
        The first split of each state, int64[S], -1 for none; what it has in hand,
        int32[N, 3] (phone, its first frame, the transition-state it was left from, 0
        where not yet); the next split of the same state, int64[N], -1 for none; the
        split that each arc from each split leads to, int32, in the order of states,
        their splits, and arcs.
    """
    first = np.full(len(frame), -1, np.int64)
    keys = np.zeros((2 * len(frame) + 1, 3), np.int32)
    after = np.full(len(keys), -1, np.int64)
    reached = np.empty(2 * len(next_state) + 1, np.int32)
    first[0], count, filled = 0, 1, 0
    for s in range(len(frame)):
        split = first[s]
        while split >= 0:
            while filled + arc_begin[s + 1] - arc_begin[s] > len(reached):
                reached = np.concatenate((reached, np.empty_like(reached)))
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                key, _ = _step(keys[split], transition_id[arc], frame[s], labels)
                target = next_state[arc]
                found = _find(first[target], keys, after, key)
                if found < 0:
                    if count == len(keys):
                        keys = np.concatenate((keys, np.zeros_like(keys)))
                        after = np.concatenate((after, np.full_like(after, -1)))
                    keys[count, 0], keys[count, 1], keys[count, 2] = key
                    after[count] = first[target]
                    first[target] = found = count
                    count += 1
                reached[filled] = found
                filled += 1
            split = after[split]
            if filled > limit:
                return first, keys[:count], after[:count], reached[:filled]
    return first, keys[:count], after[:count], reached[:filled]


@njit(cache=True, nogil=True)
def _numbers(first: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Number splits in the order of their states, int64[N].

    Args:
        first: int64[S], of `_splits`.
        after: int64[N], likewise.
    """
    number = np.full(len(after), -1, np.int64)
    count = 0
    for s in range(len(first)):
        split = first[s]
        while split >= 0:
            number[split] = count
            count += 1
            split = after[split]
    return number


@njit(cache=True, nogil=True)
def _lengths(first: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the splits of each state, int64[S].

    Args:
        first: int64[S], of `_splits`.
        after: int64[N], likewise.
    """
    lengths = np.zeros(len(first), np.int64)
    for s in range(len(first)):
        split = first[s]
        while split >= 0:
            lengths[s] += 1
            split = after[split]
    return lengths


@njit(cache=True, nogil=True)
def _split_arcs(
    arc_begin: np.ndarray,
    transition_id: np.ndarray,
    frame: np.ndarray,
    is_final: np.ndarray,
    labels: _Labels,
    splits: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    num_arcs: int,
) -> tuple[np.ndarray, np.ndarray]:
    """List the arcs between splits.

    Args:
        arc_begin: int64[S + 1].
        transition_id: int32[A].
        frame: int32[S].
        is_final: bool[S].
        labels: of transition-ids, see `_splits`.
        splits: what `_splits` and `_numbers` give.
        num_arcs: number of arcs.

    Returns:
        Where the arcs of each split begin, int64[N + 2]; of arcs the target, the
        lattice's arc, the completed phone, its first frame and one past its last,
        int32[M, 5].
    """
    first, keys, after, number, reached = splits
    begin = np.zeros(len(number) + 2, np.int64)
    table = np.empty((num_arcs, 5), np.int32)
    filled, steps = 0, 0
    for s in range(len(frame)):
        split = first[s]
        while split >= 0:
            key = keys[split]
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                _, is_done = _step(key, transition_id[arc], frame[s], labels)
                table[filled, 0], table[filled, 1] = number[reached[steps]], arc
                steps += 1
                table[filled, 2] = key[0] if is_done else 0
                table[filled, 3], table[filled, 4] = key[1], frame[s]
                filled += 1
            if is_final[s]:
                table[filled, 0], table[filled, 1] = len(number), len(transition_id) + s
                table[filled, 2], table[filled, 3] = key[0], key[1]
                table[filled, 4] = frame[s]
                filled += 1
            begin[number[split] + 1] = filled
            split = after[split]
    begin[-1] = filled
    return begin, table[:filled]


@njit(cache=True, nogil=True)
def _step(
    key: np.ndarray, id_: int, frame: int, labels: _Labels
) -> tuple[tuple[Any, Any, Any], Any]:
    """Return what is in hand after an arc, and whether it begins a phone.

    Args:
        key: int32[3], what was in hand.
        id_: its transition-id; 0 for none.
        frame: before it.
        labels: of transition-ids, see `_splits`.
    """
    phone, state, is_self_loop, leaves, is_timed = labels
    begun, left = key[1], key[2]
    if id_ == 0:
        return (key[0], begun, left), False
    in_hand = key[0] != 0
    follows = left != 0 and is_self_loop[id_] and state[id_] == left
    begins = not in_hand or (left != 0 and not follows)
    if begins:
        begun, left = np.int32(frame if is_timed[id_] else -1), np.int32(0)
    if leaves[id_]:
        left = np.int32(state[id_])
    now = np.int32(phone[id_]) if begins else key[0]
    return (now, begun, left), begins and in_hand


@njit(cache=True, nogil=True)
def _find(
    split: Any, keys: np.ndarray, after: np.ndarray, key: tuple[Any, Any, Any]
) -> Any:
    """Return the split of a state with a key, -1 if there is none."""
    while split >= 0:
        if (
            keys[split, 0] == key[0]
            and keys[split, 1] == key[1]
            and keys[split, 2] == key[2]
        ):
            return split
        split = after[split]
    return -1
