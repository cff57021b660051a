"""Estimate how sure a word error rate is: bootstrap intervals and paired comparisons.

The utterances (or speakers) of a test set are drawn again, with replacement, many
times; the spread of the word error rates of these made-up sets is the uncertainty of
ours. Words of one speaker go wrong together, so drawing whole speakers gives wider,
more honest intervals where a set has enough of them.

Redrawing says nothing about errors that a set happens not to have: with few errors an
interval is at least as wide as the exact binomial one of independent words. Of several
comparisons one may look real by chance: `holm` corrects their p.

Source: M. Bisani and H. Ney, "Bootstrap estimates for confidence intervals in ASR
performance evaluation", ICASSP 2004 (equations 3 to 9); C. Clopper and E. Pearson, "The
use of confidence or fiducial limits", Biometrika 1934; S. Holm, "A simple sequentially
rejective multiple test procedure", Scandinavian Journal of Statistics 1979.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Draws held in memory at a time.
_CHUNK = 1 << 21
# Errors below which redrawn sets are too much alike.
_FEW_ERRORS = 30
_BISECTIONS = 60


@dataclass(frozen=True)
class Interval:
    """Bounds of a word error rate, in per cent (NaN where there is nothing to draw)."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A new system against an old one on the same utterances.

    Attributes:
        difference: word error rate of the new minus that of the old, absolute per cent;
            negative is better.
        low: lower bound of the difference's interval.
        high: upper bound.
        probability_of_improvement: share of drawn sets on which the new system is
            better (sets with a tie count half).
        p_value: two-sided: twice the share of drawn sets on which the difference
            vanishes or changes its sign; small means that the systems really differ.
    """

    difference: float
    low: float
    high: float
    probability_of_improvement: float
    p_value: float

    def reversed(self) -> Comparison:
        """Return the comparison of the old system against the new one."""
        better = 1.0 - self.probability_of_improvement
        return Comparison(-self.difference, -self.high, -self.low, better, self.p_value)


def bootstrap_interval(
    errors: np.ndarray,
    words: np.ndarray,
    *,
    samples: int,
    confidence: float,
    seed: int,
    blocks: Sequence[str] | None = None,
) -> Interval:
    """Return the confidence interval of a word error rate.

    Args:
        errors: [N] errors of each utterance.
        words: [N] reference words of each utterance.
        samples: number of sets drawn, >= 1.
        confidence: share of the drawn rates inside the interval, in (0, 1).
        seed: of the draws.
        blocks: [N] what is drawn as a whole, e.g. the speaker; utterances if None.

    Returns:
        Percentiles (1 - confidence) / 2 and (1 + confidence) / 2 of the drawn rates; of
        sets with few errors, or few words that have none, at least the exact binomial
        interval.
    """
    counts = _totals(np.stack([errors, words]), blocks)
    rates = np.concatenate([_rate(drawn) for drawn in _draws(counts, samples, seed)])
    low, high = _percentiles(rates, confidence)
    num_errors, num_words = map(int, counts.sum(axis=1))
    num_correct = num_words - num_errors  # less than 0 with many insertions
    if num_errors < min(_FEW_ERRORS, num_words):
        exact = _binomial_interval(num_errors, num_words, confidence)
        low, high = min(low, exact.low), max(high, exact.high)
    elif num_words and 0 <= num_correct < _FEW_ERRORS:
        exact = _binomial_interval(num_correct, num_words, confidence)
        low, high = min(low, 100 - exact.high), max(high, 100 - exact.low)
    return Interval(low, high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p of several comparisons, so that none is called real too easily.

    Args:
        p_values: of each comparison.

    Returns:
        Corrected values in the same order: the k-th smallest of m is multiplied by
        m - k + 1, and is at least as large as the one before it.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    scaled = np.maximum.accumulate(np.asarray(p_values, np.float64)[order] * factors)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, scaled)
    return corrected.tolist()


def paired_bootstrap(
    old_errors: np.ndarray,
    new_errors: np.ndarray,
    words: np.ndarray,
    *,
    samples: int,
    confidence: float,
    seed: int,
    blocks: Sequence[str] | None = None,
) -> Comparison:
    """Compare two systems on the same utterances.

    Both systems are scored on the same drawn utterances, so what makes a set hard for
    both drops out and small but consistent differences show.

    Args:
        old_errors: [N] errors of the system compared with.
        new_errors: [N] errors of the system in question.
        words: [N] reference words.
        samples: number of sets drawn, >= 1.
        confidence: share of the drawn differences inside the interval, in (0, 1).
        seed: of the draws.
        blocks: [N] what is drawn as a whole, e.g. the speaker; utterances if None.

    Returns:
        Difference, its interval, and how likely it is to be real.
    """
    change = np.asarray(new_errors, dtype=np.int64) - np.asarray(old_errors)
    counts = _totals(np.stack([change, words]), blocks)
    drawn = np.concatenate([_rate(part) for part in _draws(counts, samples, seed)])
    drawn = drawn[~np.isnan(drawn)]
    low, high = _percentiles(drawn, confidence)
    better, worse = int(np.sum(drawn < 0)), int(np.sum(drawn > 0))
    ties = len(drawn) - better - worse
    # One is added to both counts, so that no finite number of draws claims certainty.
    tail = (min(better, worse) + ties + 1) / (len(drawn) + 1)
    return Comparison(
        difference=float(_rate(counts.sum(axis=1, keepdims=True))[0]),
        low=low,
        high=high,
        probability_of_improvement=(better + 0.5 * ties) / max(1, len(drawn)),
        p_value=min(1.0, 2 * tail),
    )


def _binomial_interval(errors: int, words: int, confidence: float) -> Interval:
    """Return the exact interval of a rate of independent errors, per cent.

    Without errors all that may be missed lies above: close to 3 / words at 95 %, known
    as the rule of three.
    """
    tail = (1.0 - confidence) / (1 if errors == 0 else 2)
    high = _quantile(errors, words, tail)
    low = _quantile(errors - 1, words, 1.0 - tail) if errors else 0.0
    return Interval(100 * low, 100 * high)


def _quantile(errors: int, words: int, share: float) -> float:
    """Return the rate at which at most this many errors occur with a probability."""
    k = np.arange(errors + 1)
    log_coefficients = np.concatenate(
        [[0.0], np.cumsum(np.log((words - k[:-1]) / (k[:-1] + 1)))]
    )
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        rate = (low + high) / 2
        logs = log_coefficients + k * math.log(rate) + (words - k) * math.log1p(-rate)
        low, high = (rate, high) if np.exp(logs).sum() > share else (low, rate)
    return low


def _totals(counts: np.ndarray, blocks: Sequence[str] | None) -> np.ndarray:
    """Sum [2, N] counts over the utterances of each block: [2, number of blocks]."""
    counts = counts.astype(np.int64)
    if blocks is None:
        return counts
    names, member = np.unique(np.asarray(blocks, dtype=object), return_inverse=True)
    totals = [np.bincount(member, weights=row, minlength=len(names)) for row in counts]
    return np.stack(totals).astype(np.int64)


def _draws(counts: np.ndarray, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield [2, some] totals of drawn sets, `samples` in all."""
    num_blocks = counts.shape[1]
    if not num_blocks:
        yield np.zeros((2, 0), dtype=np.int64)
        return
    generator = np.random.default_rng(seed)
    step = max(1, _CHUNK // num_blocks)
    for first in range(0, samples, step):
        size = (min(step, samples - first), num_blocks)
        chosen = generator.integers(num_blocks, size=size)
        yield counts[:, chosen].sum(axis=2)


def _rate(totals: np.ndarray) -> np.ndarray:
    """Return per cent of [2, S] (errors, words); NaN where no word was drawn."""
    errors, words = totals.astype(np.float64)
    return np.divide(
        100.0 * errors, words, out=np.full(len(words), np.nan), where=words > 0
    )


def _percentiles(rates: np.ndarray, confidence: float) -> tuple[float, float]:
    """Return bounds that leave equal shares on both sides."""
    rates = rates[~np.isnan(rates)]
    if not len(rates):
        return float("nan"), float("nan")
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(rates, [tail, 100.0 - tail])
    return float(low), float(high)
