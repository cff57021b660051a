"""The M-step of diagonal Gaussian mixtures, their MAP means, and mixing up.

Source: Kaldi `gmm/mle-diag-gmm.cc` (`MleDiagGmmUpdate`), `gmm/model-common.cc`
(`GetSplitTargets`), `gmm/am-diag-gmm.cc` (`SplitByCount`), `gmm/diag-gmm.cc` (`Split`).
"""

from __future__ import annotations

import heapq
import logging
from dataclasses import dataclass

import numpy as np

from latflow.gmm.model import DiagGmms

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateOptions:
    """Bounds of the M-step (Kaldi's `MleDiagGmmOptions`).

    Attributes:
        min_weight: a Gaussian of less weight in its mixture is removed.
        min_occupancy: a Gaussian that saw no more frames than this is removed.
        min_variance: floor of every variance.
    """

    min_weight: float = 1e-5
    min_occupancy: float = 10.0
    min_variance: float = 1e-3


@dataclass(frozen=True)
class UpdateReport:
    """Effects of the bounds.

    Attributes:
        num_removed: Gaussians removed.
        num_floored: variances (single dimensions) floored.
    """

    num_removed: int
    num_floored: int


def update_gmms(
    gmms: DiagGmms, moments: np.ndarray, options: UpdateOptions
) -> tuple[DiagGmms, UpdateReport]:
    """Return the maximum-likelihood estimate of all mixtures.

    A Gaussian below the bounds is removed, but the last one of a mixture stays; it then
    keeps its mean and variance. So does every mixture that saw no frame.

    Args:
        gmms: the mixtures that the statistics were made with.
        moments: float64[G, 1 + 2 D], sums of posterior * [1, x, x^2].
    """
    dim = gmms.dim
    sizes = np.diff(gmms.begin)
    occupancy = moments[:, 0]
    totals = np.repeat(np.add.reduceat(occupancy, gmms.begin[:-1]), sizes)
    share = np.where(
        totals > 0, occupancy / np.maximum(totals, 1e-300), 1 / np.repeat(sizes, sizes)
    )
    is_fed = (occupancy > options.min_occupancy) & (share > options.min_weight)
    counts = np.where(is_fed, occupancy, 1.0)[:, None]
    means = np.where(is_fed[:, None], moments[:, 1 : 1 + dim] / counts, gmms.means)
    raw = moments[:, 1 + dim :] / counts - means * means
    is_floored = is_fed[:, None] & (raw < options.min_variance)
    floored = np.maximum(raw, options.min_variance)
    variances = np.where(is_fed[:, None], floored, gmms.variances)
    weights = np.where(is_fed, share, np.maximum(share, options.min_weight))
    is_kept = is_fed | _is_last_resort(is_fed, gmms.begin)
    kept_sizes = np.add.reduceat(is_kept.astype(np.int64), gmms.begin[:-1])
    begin = np.concatenate([[0], np.cumsum(kept_sizes)])
    weights = weights[is_kept]
    weights /= np.repeat(np.add.reduceat(weights, begin[:-1]), kept_sizes)
    report = UpdateReport(int((~is_kept).sum()), int(is_floored.sum()))
    new = DiagGmms.from_moments(begin, weights, means[is_kept], variances[is_kept])
    return new, report


def _is_last_resort(is_fed: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Return the last Gaussian of every mixture that has no fed one, bool[G]."""
    is_starved = ~np.logical_or.reduceat(is_fed, begin[:-1])
    is_last = np.zeros(len(is_fed), bool)
    is_last[begin[1:][is_starved] - 1] = True
    return is_last


def pdf_occupancies(gmms: DiagGmms, moments: np.ndarray) -> np.ndarray:
    """Return frames that each pdf saw, float64[P]."""
    return np.add.reduceat(moments[:, 0], gmms.begin[:-1])


def split_targets(
    occupancies: np.ndarray, total: int, *, power: float, min_count: float = 20.0
) -> np.ndarray:
    """Share out Gaussians among pdfs in proportion to occupancy ** power.

    Every pdf gets one; each further one goes to the pdf with the largest
    occupancy ** power per Gaussian, unless a Gaussian of it would then see `min_count`
    frames or less. Of equal pdfs the first is served first (Kaldi: not specified).

    Args:
        occupancies: float64[P], frames that each pdf saw.
        min_count: see above, frames.

    Returns:
        int64[P].
    """
    powered = np.power(np.maximum(occupancies, 0.0), power)
    targets = np.ones(len(occupancies), np.int64)
    queue = [(-value, p) for p, value in enumerate(powered.tolist()) if value > 0]
    heapq.heapify(queue)
    missing = total - len(occupancies)
    while missing > 0 and queue:
        _, p = queue[0]
        if (targets[p] + 1) * min_count >= occupancies[p]:
            heapq.heappop(queue)
            continue
        targets[p] += 1
        missing -= 1
        heapq.heapreplace(queue, (-powered[p] / targets[p], p))
    if missing > 0:
        log.warning(
            "mixing up ends %d Gaussians short of %d: the others would see fewer than "
            "%g frames each",
            missing,
            total,
            min_count,
        )
    return targets


def split(
    gmms: DiagGmms,
    targets: np.ndarray,
    rng: np.random.Generator,
    *,
    perturb_factor: float = 0.01,
) -> DiagGmms:
    """Split Gaussians until every mixture has at least its target.

    Again and again the heaviest Gaussian of a mixture gives half of its weight to a
    copy; the two means move apart by a random fraction of the standard deviation.

    Args:
        targets: int64[P]; mixtures with more Gaussians stay unchanged.
        rng: draws one standard normal vector a split, in order of pdfs.
        perturb_factor: standard deviation of the move, in standard deviations.
    """
    sizes = np.diff(gmms.begin)
    added = np.maximum(targets - sizes, 0)
    begin = np.concatenate([[0], np.cumsum(sizes + added)])
    weights = np.zeros(begin[-1], np.float32)
    source = np.zeros(begin[-1], np.int64)
    old = np.arange(gmms.num_gaussians) + np.repeat(begin[:-1] - gmms.begin[:-1], sizes)
    weights[old] = gmms.weights
    source[old] = np.arange(gmms.num_gaussians)
    linear = np.zeros((begin[-1], gmms.dim), np.float32)
    linear[old] = gmms.means_invvars
    deviations = np.sqrt(gmms.inv_vars)
    for p in np.flatnonzero(added).tolist():
        for new in range(begin[p] + sizes[p], begin[p + 1]):
            heaviest = begin[p] + int(np.argmax(weights[begin[p] : new]))
            weights[heaviest] /= 2
            weights[new] = weights[heaviest]
            source[new] = source[heaviest]
            move = rng.standard_normal(gmms.dim, np.float32)
            move *= np.float32(perturb_factor) * deviations[source[heaviest]]
            linear[new] = linear[heaviest] + move
            linear[heaviest] -= move
    return DiagGmms.from_natural(begin, weights, linear, gmms.inv_vars[source])


def mix_up(
    gmms: DiagGmms,
    occupancies: np.ndarray,
    total: int,
    rng: np.random.Generator,
    *,
    power: float,
) -> DiagGmms:
    """Split towards a total number of Gaussians (Kaldi's `SplitByCount`).

    Args:
        occupancies: float64[P], frames that each pdf saw.
        total: number of Gaussians wanted; fewer than there are changes nothing.
        power: exponent of the occupancy.
    """
    return split(gmms, split_targets(occupancies, total, power=power), rng)


def map_means(prior: DiagGmms, moments: np.ndarray, tau: float) -> DiagGmms:
    """Return mixtures with means adapted to statistics; weights and variances stay.

    The maximum-a-posteriori estimate, with a Gaussian prior of the mean around the
    prior mixtures', of the Gaussian's own variance over `tau`:

        m' = (sum_t gamma_t x_t + tau m) / (sum_t gamma_t + tau).

    Args:
        prior: mixtures whose means the prior has.
        moments: float64[G, 1 + 2 D], sums of posterior * [1, x, x^2] over frames, of
            the same Gaussians.
        tau: frames that the prior counts for, > 0.

    Source: Gauvain, Lee 1994, "Maximum a posteriori estimation for multivariate
    Gaussian mixture observations of Markov chains"; Kaldi `gmm/mle-diag-gmm.cc`
    (`MapDiagGmmUpdate`, of the means).
    """
    occupancy = moments[:, :1]
    sums = moments[:, 1 : 1 + prior.dim]
    means = (sums + tau * prior.means) / (occupancy + tau)
    inv_vars = prior.inv_vars.astype(np.float64)
    return DiagGmms.from_natural(prior.begin, prior.weights, means * inv_vars, inv_vars)
