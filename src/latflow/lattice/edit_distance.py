"""Edit distance of word sequences: the cheapest alignment and its errors.

Errors are counted on the cheapest alignment by dynamic programming. Two rules exist:

* `kaldi`: every error costs 1 (Levenshtein), so the number of errors is the least
  possible; ties are broken as Kaldi's `compute-wer` breaks them, so that insertions,
  deletions and substitutions are its numbers, too.
* `sclite`: a substitution costs 4, an insertion or deletion 3, as in NIST's `sclite`,
  with its tie breaks; the numbers of errors are those of `sclite`. Their sum is now
  and then higher than under `kaldi`: three substitutions cost as much (12) as two
  deletions, a match and two insertions, which are four errors.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from latflow.jit import njit

Rule = Literal["kaldi", "sclite"]
Words = Sequence[Hashable] | np.ndarray

_CORRECT, _SUBSTITUTION, _DELETION, _INSERTION = range(4)

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
        """Reference words that were recognized."""
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


def count_errors(ref: Words, hyp: Words, *, rule: Rule = "kaldi") -> ErrorCounts:
    """Count the errors of one hypothesis.

    Args:
        ref: reference, as words or integers; int32 arrays of word ids are fastest.
        hyp: hypothesis, likewise.
        rule: costs and tie breaks, see the module's description.

    Returns:
        Counts; with the rule `kaldi` those that Kaldi's `compute-wer` gives.
    """
    return _counts(_steps(ref, hyp, rule), len(ref))


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

    Example:
        >>> align_words("one two three".split(), "one too three four".split()).pairs
        (('one', 'one'), ('two', 'too'), ('three', 'three'), (None, 'four'))
    """
    steps = _steps(reference, hypothesis, rule)
    spoken, recognized = iter(reference), iter(hypothesis)
    pairs = tuple(
        (
            None if step == _INSERTION else next(spoken),
            None if step == _DELETION else next(recognized),
        )
        for step in steps.tolist()
    )
    return WordAlignment(pairs, _counts(steps, len(reference)))


def _steps(ref: Words, hyp: Words, rule: Rule) -> np.ndarray:
    """Return the steps of the alignment in order, uint8[max(N, M) to N + M]."""
    if isinstance(ref, np.ndarray) and isinstance(hyp, np.ndarray):
        rows = [words.astype(np.int32, copy=False) for words in (ref, hyp)]
    else:
        ids: dict[Hashable, int] = {}
        rows = [
            np.array([ids.setdefault(word, len(ids)) for word in words], np.int32)
            for words in (ref, hyp)
        ]
    return _edit_steps(rows[0], rows[1], *_RULES[rule])


def _counts(steps: np.ndarray, num_words: int) -> ErrorCounts:
    """Count the steps of an alignment of `num_words` reference words."""
    _, sub, del_, ins = np.bincount(steps, minlength=4).tolist()
    return ErrorCounts(ins, del_, sub, num_words)


@njit(cache=True, nogil=True)
def _edit_steps(
    ref: np.ndarray,
    hyp: np.ndarray,
    substitution_cost: int,
    gap_cost: int,
    prefer_pair: bool,  # noqa: FBT001 (Numba kernels take positional arguments)
) -> np.ndarray:
    """Find the cheapest edit of ref [N] into hyp [M]; uint8 array of steps.

    Cell (i, j) holds the cost of ref[:i] against hyp[:j]. A pair (match or
    substitution) wins where it is strictly cheapest (with `prefer_pair`: as cheap as
    any); else a deletion wins where it is strictly cheaper than an insertion.

    Source: Kaldi `util/edit-distance-inl.h:LevenshteinEditDistance` (`prefer_pair`
    false); SCTK `net_dp.c:calculate_internal_cells` (true).
    """
    n, m = len(ref), len(hyp)
    came_by = np.empty((n + 1, m + 1), dtype=np.uint8)
    came_by[0, :] = _INSERTION
    came_by[:, 0] = _DELETION
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
                came_by[i, j] = _CORRECT if is_match else _SUBSTITUTION
            else:
                row[j] = best_gap
                came_by[i, j] = _DELETION if deletion < insertion else _INSERTION
        above, row = row, above
    steps = np.empty(n + m, dtype=np.uint8)
    k, i, j = n + m, n, m
    while i > 0 or j > 0:
        k -= 1
        step = came_by[i, j]
        steps[k] = step
        if step != _INSERTION:
            i -= 1
        if step != _DELETION:
            j -= 1
    return steps[k:]
