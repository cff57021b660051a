"""fMLLR: the affine transform of a speaker's features that fits a GMM system best.

The transform W = [A b] of extended frames x+ = [x; 1] maximizes the likelihood of the
transformed frames, times the volume that A adds,

    count log |det A| + sum_d (w_d k_d' - 1/2 w_d G_d w_d'),

where w_d is row d of W, and with the posterior c of each Gaussian in each frame

    k_d = sum c mean_d / variance_d x+,    G_d = sum c / variance_d x+ x+'.

These sums are the statistics. They do not depend on W, and those of parts of the data
add up. The posteriors may come from another model than means and variances (of the same
Gaussians): one for unadapted features, where the adapted model cannot judge yet.

How it is computed: in each frame, means and variances are averaged over the Gaussians
that hold it (`mean_parameters`). All G_d are then one product of D x T numbers (the
averaged inverse variances) by T x N (the products of all pairs in x+), summed in
float64.

Source: M. Gales, Maximum likelihood linear transformations for HMM-based speech
recognition, Computer Speech and Language 12(2), 1998, section 2.2 and appendix;
Kaldi `transform/fmllr-diag-gmm.cc`, `gmmbin/gmm-est-fmllr-gpost.cc`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Self

import numpy as np

from latflow.errors import UserError
from latflow.gmm import kernels
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import FmllrOptions
from latflow.lattice.posteriors import FramePosteriors

log = logging.getLogger(__name__)

_ROUNDING = 1e-9  # of the objective, per frame
_BLOCK_FRAMES = 256  # whose products of pairs are in memory together


@dataclass(eq=False)
class FmllrStatistics:
    """Sufficient statistics of some frames of a speaker; those of parts add up.

    Attributes:
        count: weight of the frames (Kaldi's beta).
        linear: float64[D, D + 1], row d is k_d (Kaldi's K).
        quadratic: float64[D, (D + 1) (D + 2) / 2], row d is the lower triangle of
            G_d, row by row (Kaldi's G).
    """

    count: float
    linear: np.ndarray
    quadratic: np.ndarray

    @classmethod
    def zeros(cls, dim: int) -> FmllrStatistics:
        """Return statistics of no frames."""
        pairs = (dim + 1) * (dim + 2) // 2
        return cls(0.0, np.zeros((dim, dim + 1)), np.zeros((dim, pairs)))

    @property
    def dim(self) -> int:
        """D, the dimension of the features."""
        return len(self.linear)

    def __iadd__(self, other: FmllrStatistics) -> Self:
        """Take the statistics of another part of the data in."""
        self.count += other.count
        self.linear += other.linear
        self.quadratic += other.quadratic
        return self

    def accumulate(
        self,
        frames: np.ndarray,
        posteriors: FramePosteriors,
        gmms: DiagGmms,
        *,
        target: DiagGmms | None = None,
    ) -> None:
        """Add frames.

        Args:
            frames: float32[T, D].
            posteriors: weights of pdfs by frame; frames without any do not count.
            gmms: mixtures that share a pdf's weight out among its Gaussians.
            target: mixtures of as many Gaussians whose means and variances the frames
                are to fit; None for `gmms`.

        Raises:
            UserError: frames, posteriors and mixtures do not fit.
        """
        target = gmms if target is None else target
        check_fit(frames, posteriors, gmms, target)
        is_held = np.diff(posteriors.frame_begin) > 0
        held = np.flatnonzero(is_held)
        # Frames in between have no entries: where one ends, the next one begins.
        begin = np.append(posteriors.frame_begin[:-1][held], len(posteriors.ids))
        for first in range(0, len(held), _BLOCK_FRAMES):
            block = held[first : first + _BLOCK_FRAMES]
            self._add_block(
                np.ascontiguousarray(frames[block], np.float32),
                begin[first : first + len(block) + 1],
                posteriors,
                gmms,
                target,
            )
        self.count += posteriors.sum()

    def _add_block(
        self,
        frames: np.ndarray,
        frame_begin: np.ndarray,
        posteriors: FramePosteriors,
        gmms: DiagGmms,
        target: DiagGmms,
    ) -> None:
        """Add frames float32[n, D], entries of frame t from frame_begin[t] on."""
        count, dim = frames.shape
        parameters = kernels.mean_parameters(
            frames,
            frame_begin,
            posteriors.ids,
            posteriors.weights,
            gmms.begin,
            gmms.factors,
            target.means_invvars,
            target.inv_vars,
        )
        extended = np.empty((count, dim + 1))
        products = np.empty((count, self.quadratic.shape[1]))
        kernels.extended_products(frames, extended, products)
        means_invvars, inv_vars = parameters.transpose(0, 2, 1)
        self.linear += means_invvars @ extended
        self.quadratic += inv_vars @ products

    def scatters(self) -> np.ndarray:
        """Return the symmetric matrices G_d, float64[D, D + 1, D + 1]."""
        size = self.dim + 1
        rows, columns = np.tril_indices(size)
        full = np.empty((self.dim, size, size))
        full[:, rows, columns] = self.quadratic
        full[:, columns, rows] = self.quadratic
        return full


def check_fit(
    frames: np.ndarray,
    posteriors: FramePosteriors,
    gmms: DiagGmms,
    target: DiagGmms,
) -> None:
    """Refuse parts that do not belong together.

    Raises:
        UserError: frames, posteriors and the two models differ in a size.
    """
    gmms.check_dim(frames.shape[1])
    if gmms.dim != target.dim or not np.array_equal(gmms.begin, target.begin):
        raise UserError(
            f"an alignment model of {gmms.num_gaussians} Gaussians of dimension "
            f"{gmms.dim} for a model of {target.num_gaussians} of {target.dim}",
            remedy="take final.mdl and final.alimdl from the same training",
        )
    if posteriors.num_frames != len(frames):
        raise UserError(
            f"posteriors of {posteriors.num_frames} frames for {len(frames)} frames",
            remedy="make the alignments or lattices again from these features",
        )
    if len(posteriors.ids) and posteriors.ids.max() >= gmms.num_pdfs:
        raise UserError(
            f"posteriors of pdf {posteriors.ids.max()}, but the model has "
            f"{gmms.num_pdfs} pdfs",
            remedy="make the alignments or lattices with this model",
        )


@dataclass(frozen=True, eq=False)
class FmllrEstimate:
    """A speaker's transform and what it is worth.

    Attributes:
        matrix: float64[D, D + 1], the offset in the last column.
        gain: increase of the objective over leaving the features alone.
        count: frames, weighted.
        is_estimated: False where there were too few frames; `matrix` is then the
            identity.
    """

    matrix: np.ndarray
    gain: float
    count: float
    is_estimated: bool


def _objective(
    matrix: np.ndarray, statistics: FmllrStatistics, scatters: np.ndarray
) -> float:
    """Return the objective, with the matrices G_d made before."""
    _, log_det = np.linalg.slogdet(matrix[:, : statistics.dim])
    products = (scatters @ matrix[:, :, None])[:, :, 0]
    rest = (matrix * (statistics.linear - 0.5 * products)).sum()
    return float(statistics.count * log_det + rest)


def estimate_fmllr(
    statistics: FmllrStatistics, options: FmllrOptions | None = None
) -> FmllrEstimate:
    """Estimate the transform of a speaker, beginning with the identity.

    Returns:
        The transform. It is the identity if the frames are too few, and if the
        statistics are such that no better one can be found (with a warning).

    Source: Kaldi `transform/fmllr-diag-gmm.cc` (`FmllrDiagGmmAccs::Update`).
    """
    options = options or FmllrOptions()
    identity = np.eye(statistics.dim, statistics.dim + 1)
    if not statistics.count > options.min_count:
        return FmllrEstimate(identity, 0.0, statistics.count, is_estimated=False)
    scatters = statistics.scatters()
    try:
        matrix = _best(statistics, scatters, identity, options)
    except np.linalg.LinAlgError:
        return _unchanged(statistics, identity)
    gain = _objective(matrix, statistics, scatters)
    gain -= _objective(identity, statistics, scatters)
    if not np.isfinite(gain) or gain < -_ROUNDING * statistics.count:
        return _unchanged(statistics, identity)
    if gain < 0.0:  # the identity is the best there is
        matrix, gain = identity, 0.0
    return FmllrEstimate(matrix, gain, statistics.count, is_estimated=True)


def _unchanged(statistics: FmllrStatistics, identity: np.ndarray) -> FmllrEstimate:
    """Leave the features of a speaker alone whose statistics have no maximum."""
    log.warning(
        "no transform from statistics of %.0f frames that leave one undetermined; the "
        "features stay as they are",
        statistics.count,
    )
    return FmllrEstimate(identity, 0.0, statistics.count, is_estimated=False)


def _best(
    statistics: FmllrStatistics,
    scatters: np.ndarray,
    identity: np.ndarray,
    options: FmllrOptions,
) -> np.ndarray:
    """Return the best transform of a type, float64[D, D + 1].

    Raises:
        LinAlgError: the statistics leave a transform undetermined.
    """
    if options.update_type == "full":
        return _best_full(statistics, scatters, identity, options.num_iterations)
    matrix, dim = identity.copy(), statistics.dim
    d = np.arange(dim)
    if options.update_type == "none":
        return matrix
    own, last = statistics.linear[d, d], statistics.linear[:, dim]
    square, cross, total = scatters[d, d, d], scatters[d, d, dim], scatters[:, dim, dim]
    if options.update_type == "diag":
        # With the best offset put in, the factor s solves a s^2 - b s - count = 0.
        a = square - cross * cross / total
        if not (a > 0.0).all():
            raise np.linalg.LinAlgError
        b = own - cross * last / total
        matrix[d, d] = (b + np.sqrt(b * b + 4.0 * a * statistics.count)) / (2.0 * a)
    matrix[:, dim] = (last - matrix[d, d] * cross) / total
    return _checked(matrix)


def _best_full(
    statistics: FmllrStatistics,
    scatters: np.ndarray,
    identity: np.ndarray,
    num_iterations: int,
) -> np.ndarray:
    """Optimize row by row, from the identity; see `kernels.sweep_rows`.

    Source: Kaldi `ComputeFmllrMatrixDiagGmmFull`, `FmllrInnerUpdate`, which invert A
    again for each row; here its inverse is updated, and made again for each sweep.
    """
    inverses = np.linalg.inv(scatters)
    offsets = (inverses @ statistics.linear[:, :, None])[:, :, 0].copy()
    matrix, dim = identity.copy(), statistics.dim
    for _ in range(num_iterations):
        inverse = np.ascontiguousarray(np.linalg.inv(matrix[:, :dim]))
        kernels.sweep_rows(inverses, offsets, statistics.count, inverse, matrix)
        _checked(matrix)
    return matrix


def _checked(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix, if its numbers are finite; LinAlgError otherwise."""
    if not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError
    return matrix
