"""Minimum word error (MWE) over a list of paths of the lattice.

    F = - sum over the list of p(path) * word errors(path),
    p(path) = exp(score of the path) / sum of the same over the list,

the expected number of word errors, negated so that it is maximized like all criteria
here. The list is either the n best distinct word sequences, each by its best path, or
paths drawn by their posterior (equal ones once). It is a constant: value and gradient
are those of this list, the gradient to the score of a path being

    p(path) * (expected errors - errors(path)).

With `unit: phone` errors are counted on the phones of the paths (silence left out)
against those of the alignment.

PyKaldi2's option `equal_weight` (drawn paths that all count the same) is not offered:
its value does not depend on the scores, and what it trains by is the gradient of
another function.

Source: Povey, Woodland 2002, "Minimum phone error and I-smoothing" (MWE); Shannon 2017,
"Optimizing expected word error rate via sampling for speech recognition"; Prabhavalkar
et al. 2018, "Minimum word error rate training for attention-based
sequence-to-sequence models" (n-best lists).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from latflow.criteria.criterion import Evaluation, PathCriterion, Utterance
from latflow.criteria.options import MweOptions
from latflow.lattice.best_path import BestPath
from latflow.lattice.edit_distance import count_errors
from latflow.lattice.n_best import n_best, random_paths
from latflow.lattice.phone_arcs import phones_of_alignment


class _PathList(NamedTuple):
    """The paths that the expectation runs over; N of them.

    Attributes:
        pdfs: int32 [N, T].
        graph_score: float64 [N], scaled.
        errors: float64 [N].
        num_words: of the reference.
    """

    pdfs: np.ndarray
    graph_score: np.ndarray
    errors: np.ndarray
    num_words: int


class Mwe(PathCriterion):
    """Minus the expected word errors; see `LatticeCriterion`.

    With `unit: word` the alignment is used to seed drawn paths only, with `unit: phone`
    the words are not used. Statistics: expected errors, words (or phones) of the
    reference, and paths of the list.
    """

    name = "mwe"
    statistics = ("word_errors", "reference_words", "paths")
    options: MweOptions

    def evaluate(self, utterance: Utterance, gradient: np.ndarray) -> Evaluation:
        """Return minus the expected errors; see `LatticeCriterion.evaluate`."""
        log_likes, scale = utterance.log_likes, self.options.acoustic_scale
        paths = self._paths(utterance)
        rows = np.arange(paths.pdfs.shape[1])
        acoustic = log_likes[rows, paths.pdfs].sum(axis=1, dtype=np.float64)
        score = scale * acoustic + paths.graph_score
        share = np.exp(score - score.max())
        share /= share.sum()
        expected = float(share @ paths.errors)
        weight = scale * share * (expected - paths.errors)
        sums = np.zeros(log_likes.shape)
        for pdfs, of_path in zip(paths.pdfs, weight, strict=True):
            sums[rows, pdfs] += of_path
        gradient += sums
        values = expected, float(paths.num_words), float(len(paths.errors))
        return self.evaluation(-expected, len(rows), *values)

    def _paths(self, utterance: Utterance) -> _PathList:
        """Pick paths of the lattice and count their errors."""
        options, arcs = self.options, self.arcs(utterance)
        if options.draw == "best":
            paths = n_best(arcs, options.num_paths)
        else:
            alignment = np.ascontiguousarray(utterance.alignment, np.int32)
            key = zlib.crc32(alignment.tobytes())
            generator = np.random.default_rng([self.seed, key])
            drawn = random_paths(arcs, options.num_paths, generator)
            paths = list({_identity(path): path for path in drawn}.values())
        pdfs = np.stack([self.model.pdf[path.transition_ids] for path in paths])
        rows = np.arange(pdfs.shape[1])
        acoustic = utterance.log_likes[rows, pdfs].sum(axis=1, dtype=np.float64)
        cost = np.array([path.graph_cost for path in paths])  # scaled, with acoustics
        errors, num_words = self._errors(paths, utterance)
        score = -cost - options.acoustic_scale * acoustic
        return _PathList(pdfs, score, errors, num_words)

    def _errors(
        self, paths: Sequence[BestPath], utterance: Utterance
    ) -> tuple[np.ndarray, int]:
        """Count errors of each path, float64 [N], and units of the reference."""
        if self.options.unit == "word":
            reference = np.asarray(utterance.words, np.int32)
            hypotheses = [path.words for path in paths]
        else:
            reference = self._phones(utterance.alignment)
            hypotheses = [self._phones(path.transition_ids) for path in paths]
        errors = [count_errors(reference, each).errors for each in hypotheses]
        return np.array(errors, np.float64), len(reference)

    def _phones(self, ids: np.ndarray) -> np.ndarray:
        """Return the phones of a path without silence, int32[N]."""
        phones = phones_of_alignment(ids, self.model)[0]
        return phones[~np.isin(phones, self.silence_phones)]


def _identity(path: BestPath) -> tuple[bytes, bytes]:
    """Return the key that distinguishes drawn paths."""
    return path.words.tobytes(), path.transition_ids.tobytes()
