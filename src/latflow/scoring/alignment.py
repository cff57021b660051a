"""Alignment of a recognised word sequence with its reference, and its error counts.

Errors are counted on the cheapest alignment by dynamic programming. Two rules exist:

* `kaldi`: every error costs 1 (Levenshtein), so the number of errors is the least
  possible; ties are broken as Kaldi's `compute-wer` breaks them, so that insertions,
  deletions and substitutions are its numbers, too.
* `sclite`: a substitution costs 4, an insertion or deletion 3, as in NIST's `sclite`,
  with its tie breaks; the numbers of errors are those of `sclite`. Their sum is now
  and then higher than under `kaldi`: three substitutions cost as much (12) as two
  deletions, a match and two insertions, which are four errors.

Public: `align_words`, `count_errors`, `align_ids`, `WordAlignment`, `ErrorCounts`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit

Rule = Literal["kaldi", "sclite"]

CORRECT, SUBSTITUTION, DELETION, INSERTION = range(4)

# Costs of (substitution, deletion or insertion), and whether a substitution (or match)
# wins against an equally cheap deletion or insertion.
_RULES: dict[str, tuple[int, int, bool]] = {
    "kaldi": (1, 1, False),
    "sclite": (4, 3, True),
}


@dataclass(frozen=True)
class ErrorCounts:
    """Counts of an alignment, or their sums over many.

    Attributes:
        ins: inserted words (in the hypothesis only).
        del_: deleted words (in the reference only).
        sub: substituted words.
        words: words of the reference.
    """

    ins: int = 0
    del_: int = 0
    sub: int = 0
    words: int = 0

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions together."""
        return self.ins + self.del_ + self.sub

    @property
    def correct(self) -> int:
        """Reference words that were recognised."""
        return self.words - self.del_ - self.sub

    @property
    def wer(self) -> float:
        """Word error rate in per cent; NaN where the reference has no word."""
        return 100.0 * self.errors / self.words if self.words else float("nan")

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            self.ins + other.ins,
            self.del_ + other.del_,
            self.sub + other.sub,
            self.words + other.words,
        )


@dataclass(frozen=True)
class WordAlignment:
    """Reference and hypothesis, word by word.

    Attributes:
        pairs: (reference word, hypothesis word) in order; None in the first place is an
            insertion, in the second a deletion.
        counts: the errors.
    """

    pairs: tuple[tuple[str | None, str | None], ...]
    counts: ErrorCounts


def align_words(
    reference: Sequence[str], hypothesis: Sequence[str], *, rule: Rule = "kaldi"
) -> WordAlignment:
    """Align two word sequences.

    Args:
        reference: what was said.
        hypothesis: what was recognised.
        rule: costs and tie breaks, see the module's description.

    Returns:
        Word pairs and counts.

    Example:
        >>> align_words("one two three".split(), "one too three four".split()).pairs
        (('one', 'one'), ('two', 'too'), ('three', 'three'), (None, 'four'))
    """
    operations = align_ids(*_as_ids(reference, hypothesis), rule=rule)
    pairs: list[tuple[str | None, str | None]] = []
    i = j = 0
    for operation in operations.tolist():
        word = None if operation == INSERTION else reference[i]
        heard = None if operation == DELETION else hypothesis[j]
        pairs.append((word, heard))
        i += operation != INSERTION
        j += operation != DELETION
    return WordAlignment(tuple(pairs), _counts(operations, len(reference)))


def count_errors(
    ref: Sequence[Hashable], hyp: Sequence[Hashable], *, rule: Rule = "kaldi"
) -> ErrorCounts:
    """Count the errors of one hypothesis.

    Args:
        ref: reference, as words or integers; int32 arrays of word ids are fastest.
        hyp: hypothesis, likewise.
        rule: costs and tie breaks, see the module's description.

    Returns:
        Counts; with the rule `kaldi` those that Kaldi's `compute-wer` gives.
    """
    operations = align_ids(*_as_ids(ref, hyp), rule=rule)
    return _counts(operations, len(ref))


def align_ids(ref: np.ndarray, hyp: np.ndarray, *, rule: Rule = "kaldi") -> np.ndarray:
    """Align two sequences of integers.

    Args:
        ref: int32 [N], reference.
        hyp: int32 [M], hypothesis.
        rule: costs and tie breaks, see the module's description.

    Returns:
        uint8 [K], max(N, M) <= K <= N + M: the steps of the alignment in order, each
        `CORRECT`, `SUBSTITUTION`, `DELETION` or `INSERTION`.
    """
    substitution_cost, gap_cost, prefer_pair = _RULES[rule]
    return _edit_steps(ref, hyp, substitution_cost, gap_cost, prefer_pair)


def _counts(operations: np.ndarray, num_words: int) -> ErrorCounts:
    """Counts of the steps of an alignment."""
    tally = np.bincount(operations, minlength=4).tolist()
    return ErrorCounts(
        tally[INSERTION], tally[DELETION], tally[SUBSTITUTION], num_words
    )


def _as_ids(
    ref: Sequence[Hashable], hyp: Sequence[Hashable]
) -> tuple[np.ndarray, np.ndarray]:
    """Number the words of both sequences; equal words get equal numbers."""
    if isinstance(ref, np.ndarray) and isinstance(hyp, np.ndarray):
        return ref.astype(np.int32, copy=False), hyp.astype(np.int32, copy=False)
    ids: dict[Hashable, int] = {}
    numbers = [
        np.fromiter(
            (ids.setdefault(word, len(ids)) for word in sequence),
            dtype=np.int32,
            count=len(sequence),
        )
        for sequence in (ref, hyp)
    ]
    return numbers[0], numbers[1]


@njit(cache=True, nogil=True)
def _edit_steps(
    ref: np.ndarray,
    hyp: np.ndarray,
    substitution_cost: int,
    gap_cost: int,
    prefer_pair: bool,  # noqa: FBT001 (Numba kernels take positional arguments)
) -> np.ndarray:
    """Cheapest edit of ref [N] into hyp [M] as a uint8 array of steps.

    Cell (i, j) holds the cost of ref[:i] against hyp[:j]. A pair (match or
    substitution) wins where it is strictly cheapest (with `prefer_pair`: as cheap as
    any); else a deletion wins where it is strictly cheaper than an insertion.

    Source: Kaldi `util/edit-distance-inl.h:LevenshteinEditDistance` (`prefer_pair`
    false); SCTK `net_dp.c:calculate_internal_cells` (true).
    """
    n, m = len(ref), len(hyp)
    came_by = np.empty((n + 1, m + 1), dtype=np.uint8)
    came_by[0, :] = INSERTION
    came_by[:, 0] = DELETION
    above = np.arange(m + 1, dtype=np.int64) * gap_cost
    row = np.empty(m + 1, dtype=np.int64)
    for i in range(1, n + 1):
        row[0] = i * gap_cost
        for j in range(1, m + 1):
            is_match = ref[i - 1] == hyp[j - 1]
            pair = above[j - 1] + (0 if is_match else substitution_cost)
            deletion = above[j] + gap_cost
            insertion = row[j - 1] + gap_cost
            best_gap = min(deletion, insertion)
            if pair < best_gap or (prefer_pair and pair == best_gap):
                row[j] = pair
                came_by[i, j] = CORRECT if is_match else SUBSTITUTION
            else:
                row[j] = best_gap
                came_by[i, j] = DELETION if deletion < insertion else INSERTION
        above, row = row, above
    steps = np.empty(n + m, dtype=np.uint8)
    k, i, j = n + m, n, m
    while i > 0 or j > 0:
        k -= 1
        step = came_by[i, j]
        steps[k] = step
        if step != INSERTION:
            i -= 1
        if step != DELETION:
            j -= 1
    return steps[k:]
