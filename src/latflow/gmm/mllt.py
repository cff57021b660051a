"""Maximum likelihood linear transform (semi-tied covariances), estimated on all data.

Gaussians with diagonal covariances fit best where features do not correlate inside a
Gaussian. The square matrix A that makes them so maximizes, for Gaussians with means
m_g and variances v_g that stay what they are,

    sum_t sum_g posterior_g(t) log N(A x_t; A m_g, v_g) + count log |det A|
      = count log |det A| - 1/2 sum_i a_i G_i a_i' + constant,

    G_i = sum_g 1/v_gi S_g,    S_g = sum_t posterior_g(t) (x_t - m_g) (x_t - m_g)',

where a_i is row i of A. The rows are optimized in turn, each exactly, by the cofactors
of the others.

The statistics are dense products: with the frames of one pdf (T x D), all scatters S_g
of its Gaussians are one product of D x T by T x (K D) numbers, and their sums G_i one
of D x K by K x D^2.

Source: M. Gales, Semi-tied covariance matrices for hidden Markov models, IEEE
Transactions on Speech and Audio Processing 7(3), 1999, equation (22);
Kaldi `transform/mllt.cc`, `gmmbin/gmm-acc-mllt.cc`, `bin/est-mllt.cc`,
`gmmbin/gmm-transform-means.cc`.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch

from latflow.errors import UserError
from latflow.gmm.estep import portions, sort_by_pdf
from latflow.gmm.model import DiagGmms

log = logging.getLogger(__name__)

_BLOCK_NUMBERS = 1 << 19  # of the weighted frames worked on together, float64
_SWEEPS = 200  # over all rows, as Kaldi's
_LEAST_GAIN = 1e-11  # per frame; a sweep that gains less is the last one


@dataclass(eq=False)
class MlltAccumulator:
    """Statistics of MLLT; those of parts of the data add up.

    Attributes:
        scatters: float64[D, D, D], the matrix G_i for each row i of the transform.
        count: frames, weighted by their posteriors.
    """

    scatters: np.ndarray
    count: float = 0.0

    @classmethod
    def zeros(cls, dim: int) -> MlltAccumulator:
        """Return statistics of no frames."""
        return cls(np.zeros((dim, dim, dim)))

    def accumulate(
        self,
        gmms: DiagGmms,
        frames: np.ndarray,
        pdfs: np.ndarray,
        pool: Executor,
        *,
        device: str = "cpu",
    ) -> None:
        """Add frames.

        Args:
            gmms: mixtures whose posteriors, means and variances are used.
            frames: float32[T, D].
            pdfs: int32[T], pdf of each frame; -1 for a frame that does not count.
            pool: threads to use; their number does not change a bit of the result.

        Raises:
            UserError: the frames have another dimension than the mixtures.
        """
        gmms.check_dim(frames.shape[1])
        order, begin = sort_by_pdf(pdfs, gmms.num_pdfs)
        if not len(order):
            return
        x = torch.from_numpy(frames[order]).to(device)

        def do(portion: np.ndarray) -> np.ndarray:
            total = torch.zeros(
                (gmms.dim, gmms.dim**2), dtype=torch.float64, device=device
            )
            for p in portion.tolist():
                rows = slice(int(gmms.begin[p]), int(gmms.begin[p + 1]))
                scatters = _scatters(gmms, rows, x[begin[p] : begin[p + 1]])
                total.addmm_(_exact(gmms.inv_vars[rows], device).T, scatters)
            return total.cpu().numpy()

        work = np.diff(begin) * np.diff(gmms.begin)
        for part in pool.map(do, portions(work)):
            self.scatters += part.reshape(self.scatters.shape)
        self.count += len(order)


@dataclass(frozen=True, eq=False)
class MlltEstimate:
    """An MLLT transform and what it is worth.

    Attributes:
        matrix: float64[D, D], to be applied after the present features.
        gain: increase of the log-likelihood, summed over frames.
        count: frames.
    """

    matrix: np.ndarray
    gain: float
    count: float

    @property
    def gain_per_frame(self) -> float:
        """Increase of the log-likelihood of a frame."""
        return self.gain / self.count


def _exact(values: np.ndarray, device: str | torch.device) -> torch.Tensor:
    """Return the numbers as float64 where torch computes."""
    return torch.from_numpy(values.astype(np.float64)).to(device)


def _scatters(gmms: DiagGmms, rows: slice, x: torch.Tensor) -> torch.Tensor:
    """Return the scatter of the frames of one pdf around each of its Gaussians.

    Args:
        rows: the Gaussians of the pdf, K of them.
        x: float32[T, D], its frames.

    Returns:
        float64[K, D D]: sum of posterior (x - m)(x - m)'.
    """
    factors = torch.from_numpy(gmms.factors[rows].T).to(x.device)
    means = _exact(gmms.means_invvars[rows], x.device)
    means /= _exact(gmms.inv_vars[rows], x.device)
    num_gaussians, dim = means.shape
    # Near 0 the products lose no digits that the differences below would miss.
    centre = means.mean(dim=0)
    means -= centre
    occupancy = means.new_zeros(num_gaussians)
    first = torch.zeros_like(means)
    second = means.new_zeros(dim, num_gaussians * dim)
    for block in torch.split(x, max(1, _BLOCK_NUMBERS // (num_gaussians * dim))):
        powers = torch.hstack([block, block * block])
        scores = torch.addmm(factors[0], powers, factors[1:])
        posteriors = torch.softmax(scores, dim=1).double()
        exact = block.double() - centre
        weighted = posteriors[:, :, None] * exact[:, None, :]
        occupancy += posteriors.sum(dim=0)
        first += posteriors.T @ exact
        second.addmm_(exact.T, weighted.reshape(len(block), -1))
    # sum (x - m)(x - m)' = sum x x' - sum x m' - m sum x' + occupancy m m'
    cross = means[:, :, None] * (first - 0.5 * occupancy[:, None] * means)[:, None, :]
    scatters = second.reshape(dim, num_gaussians, dim).transpose(0, 1)
    scatters = scatters - cross - cross.transpose(1, 2)
    return scatters.reshape(num_gaussians, dim * dim)


def estimate_mllt(statistics: MlltAccumulator) -> MlltEstimate:
    """Maximize the likelihood over square transforms of the present features.

    Begins with the identity, whose objective is what `gain` is counted from. Each
    sweep optimizes one row after another; no step can lower the objective. The inverse
    that the cofactors come from is updated for each changed row, and made again for
    each sweep.

    Raises:
        UserError: too few frames for the number of features.

    Source: Kaldi `transform/mllt.cc:MlltAccs::Update`, which always makes 200 sweeps;
    here a sweep that gains less than 1e-11 a frame is the last.
    """
    dim, count = len(statistics.scatters), statistics.count
    if count < 2 * dim:
        raise UserError(
            f"MLLT of {dim} dimensions from {count:.0f} frames that are not silence",
            remedy="train on more data, or set mllt_iterations to []",
        )
    inverses = np.linalg.inv(statistics.scatters)
    matrix, gain = np.eye(dim), 0.0
    for sweep in range(_SWEEPS):
        before = gain
        inverse = np.linalg.inv(matrix)
        for i in range(dim):
            cofactors = inverse[:, i].copy()
            row = inverses[i] @ cofactors
            row *= np.sqrt(count / (cofactors @ row))
            gain += _row_objective(statistics, i, row, cofactors)
            gain -= _row_objective(statistics, i, matrix[i], cofactors)
            # Sherman and Morrison: the inverse after row i has changed.
            change = (row - matrix[i]) @ inverse
            inverse -= np.outer(cofactors, change) / (1.0 + change[i])
            matrix[i] = row
        if sweep < 10:
            log.debug("MLLT sweep %d: gain %.6f a frame", sweep, gain / count)
        if gain - before < _LEAST_GAIN * count:
            break
    return MlltEstimate(matrix, gain, count)


def _row_objective(
    statistics: MlltAccumulator, i: int, row: np.ndarray, cofactors: np.ndarray
) -> float:
    """Return the part of the objective that depends on row i."""
    determinant = statistics.count * np.log(abs(row @ cofactors))
    return float(determinant - 0.5 * (row @ statistics.scatters[i] @ row))


def transform_means(gmms: DiagGmms, matrix: np.ndarray) -> DiagGmms:
    """Move all means as the features move (Kaldi's `gmm-transform-means`).

    Args:
        gmms: the mixtures; variances and weights stay.
        matrix: float64[D, D], or [D, D + 1] with an offset in the last column.
    """
    means = gmms.means @ matrix[:, : gmms.dim].T
    if matrix.shape[1] > gmms.dim:
        means += matrix[:, gmms.dim]
    return DiagGmms.from_natural(
        gmms.begin, gmms.weights, means / gmms.variances, gmms.inv_vars
    )
