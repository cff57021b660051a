"""The kernel of tree building: the best question for the events of a leaf.

The moments of a leaf's events are summed for each value of a key; a question then sums
over the values in its set. Only values that occur in the leaf matter, so questions that
differ elsewhere only, or that are each other's complement here, are tried once.

Source: Kaldi `tree/build-tree-utils.cc` (`FindBestSplitForKey`, `ComputeInitialSplit`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from latflow.hmm.gauss_clustering import log_likelihood

_EQUAL = 1e-11  # gains this close, relative to the leaf's log-likelihood, are equal


class QuestionTable:
    """Questions as arrays.

    Args:
        sets: for each column of the events, the sets of its questions.
        highest: the highest value that occurs; higher ones in questions are dropped.

    Attributes:
        members: uint8[K, Q, V], 1 where a value is in the set of a question.
        num_questions: int64[K].
    """

    def __init__(self, sets: Sequence[Sequence[Sequence[int]]], highest: int) -> None:
        most = max((len(questions) for questions in sets), default=0)
        self.members = np.zeros((len(sets), most, highest + 1), np.uint8)
        self.num_questions = np.array([len(questions) for questions in sets])
        for column, questions in enumerate(sets):
            for number, values in enumerate(questions):
                here = [value for value in values if value <= highest]
                self.members[column, number, here] = 1


@njit(cache=True, nogil=True)
def best_split(
    moments: np.ndarray,
    events: np.ndarray,
    rows: np.ndarray,
    members: np.ndarray,
    num_questions: np.ndarray,
    floor: float,
) -> tuple[float, int, int]:
    """Find the question that gains most likelihood in a leaf.

    A key that some event of the leaf leaves out is not asked for.

    Args:
        moments: float64[N, 1 + 2 D] of all events.
        events: int32[N, K] values of the keys; negative: left out.
        rows: int64[n], the events of the leaf.
        members: uint8[K, Q, V], as in `QuestionTable`.
        num_questions: int64[K].
        floor: least variance.

    Returns:
        (gain in nats, column of the key, question); gain 0 if no question splits. The
        first of equal gains wins, equality being meant up to rounding.
    """
    best_gain, best_column, best_question = 0.0, -1, -1
    if len(rows) < 2:
        return best_gain, best_column, best_question
    for column in range(events.shape[1]):
        present, sums = _sums_by_value(moments, events, rows, column, members.shape[2])
        if len(present) < 2:
            continue
        gain, question, slack = _best_question(
            sums, present, members[column, : num_questions[column]], floor
        )
        if gain > best_gain + slack:
            best_gain, best_column, best_question = gain, column, question
    return best_gain, best_column, best_question


@njit(cache=True, nogil=True)
def _sums_by_value(
    moments: np.ndarray,
    events: np.ndarray,
    rows: np.ndarray,
    column: int,
    num_values: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the moments of a leaf's events for each value of a key.

    Returns:
        (the values that occur int64[n], their sums float64[n, 1 + 2 D]); no values if
        an event leaves the key out.
    """
    width = moments.shape[1]
    slot = np.full(num_values, -1, np.int64)
    present = np.empty(min(num_values, len(rows)), np.int64)
    count = 0
    for row in rows:
        value = events[row, column]
        if value < 0:
            return present[:0], np.empty((0, width))
        if slot[value] < 0:
            slot[value] = count
            present[count] = value
            count += 1
    sums = np.zeros((count, width))
    for row in rows:
        target = sums[slot[events[row, column]]]
        source = moments[row]
        for m in range(width):
            target[m] += source[m]
    return present[:count], sums


@njit(cache=True, nogil=True)
def _best_question(
    sums: np.ndarray, present: np.ndarray, members: np.ndarray, floor: float
) -> tuple[float, int, float]:
    """The question on one key with the greatest gain.

    Returns:
        (gain, question, difference up to which two gains are equal).
    """
    num_values, width = sums.shape
    total = np.zeros(width)
    for n in range(num_values):
        total += sums[n]
    whole = log_likelihood(total, floor)
    prints = _fingerprints(num_values)
    tried = np.empty(len(members), np.uint64)
    num_tried = 0
    part, rest = np.empty(width), np.empty(width)
    best_gain, best_question = 0.0, -1
    slack = _EQUAL * abs(whole)
    for question in range(len(members)):
        size, mark = 0, np.uint64(0)
        for n in range(num_values):
            if members[question, present[n]]:
                size += 1
                mark ^= prints[n]
        mark = min(mark, mark ^ prints[num_values])
        if size in (0, num_values) or _is_in(tried[:num_tried], mark):
            continue
        tried[num_tried] = mark
        num_tried += 1
        smaller = 1 if 2 * size <= num_values else 0
        part[:] = 0.0
        for n in range(num_values):
            if members[question, present[n]] == smaller:
                for m in range(width):
                    part[m] += sums[n, m]
        rest[:] = total - part
        gain = log_likelihood(part, floor) + log_likelihood(rest, floor) - whole
        if gain > best_gain + slack:
            best_gain, best_question = gain, question
    return best_gain, best_question, slack


@njit(cache=True, nogil=True)
def _is_in(marks: np.ndarray, mark: np.uint64) -> bool:
    """Whether a fingerprint is among those given."""
    for known in marks:  # noqa: SIM110 - plain loops compile best
        if known == mark:
            return True
    return False


@njit(cache=True, nogil=True)
def _fingerprints(count: int) -> np.ndarray:
    """A 64-bit number for each value, and behind them the XOR of all, uint64[n + 1].

    The XOR over the values in a set stands for the set; two sets among a few hundred
    share it with a probability of some 1e-15. Numbers: splitmix64.
    """
    prints = np.zeros(count + 1, np.uint64)
    state = np.uint64(0)
    for n in range(count):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = state
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        prints[n] = z ^ (z >> np.uint64(31))
        prints[count] ^= prints[n]
    return prints
