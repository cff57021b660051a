"""Confidences that are shares of right words: fitted on scored words, and measured.

The posterior of a word in its lattice says too much or too little, by scales and by
what the lattice has lost. Of the words of a scored set, the posterior and whether the
word was right, a rising curve is fitted (isotonic regression) and drawn through few
points.
Posteriors that are right already, as far as such a set can show, are left alone.

Source: B. Zadrozny and C. Elkan, "Transforming classifier scores into accurate
multiclass probability estimates", KDD 2002; M. Pakdaman Naeini et al., "Obtaining well
calibrated probabilities using Bayesian binning", AAAI 2015 (the error).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from latflow.corpus.ctm import read_ctm
from latflow.scoring.results import GAP, read_scores

# Posteriors and shares of right words, both rising, that lines are drawn between.
Curve = tuple[tuple[float, float], ...]

_FEWEST_WORDS = 200  # that a curve is fitted to
_WORDS_A_POINT = 25  # at least, so that a point is no chance
_MOST_POINTS = 20
_PARTS = 10  # of a set, each calibrated by a curve of the others
_LEAST = 1e-4  # share that a word is given at least, in the log loss
_BINS = 10


@dataclass(frozen=True)
class ScoredWords:
    """Recognized words of a scored set.

    Attributes:
        confidence: float64[N], in [0, 1].
        is_right: bool[N], whether the reference has the word there.
    """

    confidence: np.ndarray
    is_right: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `hyp.ctm` and `per_utterance.tsv` of a folder of scores.

        Words that do not count in the scores are left out.

        Raises:
            UserError: a file is missing, or damaged.
        """
        words = defaultdict(list)
        for word in read_ctm(folder / "hyp.ctm"):
            words[word.utterance].append((word.word, word.confidence))
        found: list[tuple[float, bool]] = []
        scores = read_scores(folder / "per_utterance.tsv")
        columns = scores[["utterance", "reference", "hypothesis"]]
        for utterance, reference, hypothesis in columns.itertuples(index=False):
            recognized = iter(words[utterance])
            for word, other in zip(reference.split(), hypothesis.split(), strict=True):
                if other == GAP:
                    continue
                sure = next((c for name, c in recognized if name == other), None)
                if sure is not None:
                    found.append((sure, word == other))
        confidence = np.array([sure for sure, _ in found], np.float64)
        return cls(confidence, np.array([right for _, right in found], np.bool_))

    def where(self, chosen: np.ndarray) -> ScoredWords:
        """Return some of the words."""
        return ScoredWords(self.confidence[chosen], self.is_right[chosen])


def fit_curve(words: ScoredWords) -> Curve:
    """Return the curve of a scored set.

    An empty one where there are too few words, or where curves of nine tenths of them
    do not predict the others better than the posteriors do: the log loss must fall by
    more than its standard error.
    """
    if len(words.confidence) < _FEWEST_WORDS:
        return ()
    before, after = np.empty((2, len(words.confidence)))
    part = np.arange(len(before)) * _PARTS // len(before)
    for i in range(_PARTS):
        rest, held = words.where(part != i), words.where(part == i)
        before[part == i] = _log_loss(held.confidence, held.is_right)
        sure = calibrated(_curve(rest), held.confidence)
        after[part == i] = _log_loss(sure, held.is_right)
    gain = before - after
    helps = gain.mean() > gain.std() / np.sqrt(len(gain))
    return _curve(words) if helps else ()


def _log_loss(confidence: np.ndarray, is_right: np.ndarray) -> np.ndarray:
    """Return the log loss of each word, in nats."""
    share = np.where(is_right, confidence, 1 - confidence)
    return -np.log(np.maximum(share, _LEAST))


def _curve(words: ScoredWords) -> Curve:
    """Return the isotonic regression of a set, drawn through few points.

    A point is at the mean posterior of its words. Its share counts one right and one
    wrong word more, so that no confidence is 0 or 1.
    """
    order = np.argsort(words.confidence, kind="stable")
    size = max(_WORDS_A_POINT, -(-len(order) // _MOST_POINTS))
    # Sum of posteriors, right words, words of each block; the shares rise.
    blocks: list[np.ndarray] = []
    for part in np.array_split(order, max(1, len(order) // size)):
        sums = words.confidence[part].sum(), words.is_right[part].sum(), len(part)
        blocks.append(np.array(sums, np.float64))
        while len(blocks) > 1 and _share(blocks[-2]) >= _share(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = blocks[-1] + last
    points = {round(float(b[0] / b[2]), 4): round(_share(b), 4) for b in blocks}
    return tuple(sorted(points.items()))


def _share(block: np.ndarray) -> float:
    """Return the share of right words of a block."""
    return float((block[1] + 1) / (block[2] + 2))


def calibrated(curve: Curve, confidence: np.ndarray) -> np.ndarray:
    """Return confidences by a curve; as they are where it is empty.

    Args:
        curve: see `fit_curve`.
        confidence: float[N], posteriors.
    """
    if not curve:
        return confidence
    posterior, share = zip(*curve, strict=True)
    return np.interp(confidence, posterior, share)


def calibration_error(words: ScoredWords, curve: Curve = ()) -> float:
    """Return the expected calibration error of confidences, in [0, 1].

    The mean over words of |confidence - share of right words|, both in one of ten equal
    ranges of confidence.

    Args:
        words: of a scored set.
        curve: that the confidences are changed by.
    """
    sure = calibrated(curve, words.confidence)
    bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, sure - words.is_right, minlength=_BINS)
    return float(np.abs(gaps).sum() / max(1, len(sure)))
