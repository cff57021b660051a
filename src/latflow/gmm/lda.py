"""Linear discriminant analysis: the directions in which classes of frames differ most.

With the total covariance T of the frames, the covariance B of the class means (weighted
by the classes' frames) and the covariance inside the classes W = T - B, the rows of the
transform A are such that

    A W A' = I,    A B A' = diag(ratios),    ratios falling.

The first rows are thus the directions with the greatest variance of the class means for
a unit of variance inside the classes. Classes are pdfs, frames spliced ones.

Public: `LdaAccumulator`, `LdaEstimate`, `estimate_lda`.

Source: Kaldi `transform/lda-estimate.cc`, `bin/acc-lda.cc`, `bin/est-lda.cc`.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit

from latflow.errors import UserError

_PIECE_FRAMES = 8192  # made float64 and multiplied together by one thread


@dataclass(eq=False)
class LdaAccumulator:
    """Statistics of classified frames; those of parts of the data add up.

    Attributes:
        counts: float64[C], frames of each class.
        sums: float64[C, D], sum of each class' frames.
        scatter: float64[D, D], sum of x x' over all frames.
    """

    counts: np.ndarray
    sums: np.ndarray
    scatter: np.ndarray

    @classmethod
    def zeros(cls, num_classes: int, dim: int) -> LdaAccumulator:
        """Statistics of no frames."""
        shape = (num_classes, dim)
        return cls(np.zeros(num_classes), np.zeros(shape), np.zeros((dim, dim)))

    def accumulate(
        self, frames: np.ndarray, classes: np.ndarray, pool: Executor
    ) -> None:
        """Add frames.

        Args:
            frames: float32[T, D].
            classes: int32[T], -1 for a frame that does not count.
            pool: threads to use; their number does not change a bit of the result.
        """
        add_by_class(frames, classes, self.counts, self.sums)
        pieces = range(0, len(frames), _PIECE_FRAMES)
        is_used = classes >= 0

        def do(first: int) -> np.ndarray:
            piece = slice(first, first + _PIECE_FRAMES)
            exact = torch.from_numpy(frames[piece][is_used[piece]].astype(np.float64))
            return (exact.T @ exact).numpy()

        for part in pool.map(do, pieces):
            self.scatter += part

    def __add__(self, other: LdaAccumulator) -> LdaAccumulator:
        """The statistics of both parts of the data."""
        return LdaAccumulator(
            self.counts + other.counts,
            self.sums + other.sums,
            self.scatter + other.scatter,
        )

    @property
    def num_frames(self) -> float:
        """Frames of all classes."""
        return float(self.counts.sum())

    @property
    def mean(self) -> np.ndarray:
        """Mean of all frames, float64[D]."""
        return self.sums.sum(axis=0) / self.num_frames

    def covariances(self) -> tuple[np.ndarray, np.ndarray]:
        """Covariance inside the classes and of their means, float64[D, D] each."""
        mean = self.mean
        centred = self.sums - self.counts[:, None] * mean
        is_seen = self.counts > 0
        scaled = centred[is_seen] / np.sqrt(self.counts[is_seen])[:, None]
        between = scaled.T @ scaled / self.num_frames
        total = self.scatter / self.num_frames - np.outer(mean, mean)
        return total - between, between


@dataclass(frozen=True, eq=False)
class LdaEstimate:
    """The transform, all directions of it.

    Attributes:
        full: float64[D, D], a direction a row, the best first.
        ratios: float64[D], variance between the classes over that inside, falling.
        mean: float64[D], mean of all frames.
    """

    full: np.ndarray
    ratios: np.ndarray
    mean: np.ndarray

    def matrix(self, dim: int, *, remove_offset: bool = False) -> np.ndarray:
        """The first rows, float64[dim, D].

        Args:
            dim: how many.
            remove_offset: append a column that takes the mean of the frames to 0,
                float64[dim, D + 1] then.
        """
        rows = self.full[:dim]
        if not remove_offset:
            return rows
        return np.hstack([rows, -(rows @ self.mean)[:, None]])


def estimate_lda(
    statistics: LdaAccumulator, *, dim: int, within_class_factor: float = 1.0
) -> LdaEstimate:
    """Find the directions in which classes differ most.

    The sign of a row is free; here the entry of greatest magnitude is positive.

    Args:
        statistics: of all frames.
        dim: how many directions are wanted; checked against what there is.
        within_class_factor: variance that remains inside the classes in every
            direction; less than 1 shrinks directions that tell classes apart badly.

    Raises:
        UserError: too few classes or features for `dim`, or the features do not vary
            independently inside the classes.

    Source: Kaldi `transform/lda-estimate.cc:LdaEstimate::Estimate`, which leaves the
    sign to its singular value decomposition.
    """
    num_seen = int(np.count_nonzero(statistics.counts))
    most = min(len(statistics.scatter), num_seen - 1)
    if dim > most:
        raise UserError(
            f"LDA to {dim} dimensions, but {num_seen} pdfs with data on spliced frames "
            f"of dimension {len(statistics.scatter)} give {max(most, 0)} at most",
            remedy=f"set lda_dim to {max(most, 1)} or less, or align with more pdfs",
        )
    within, between = statistics.covariances()
    # Rounding alone must not pass for variance: some 1e-7 of it is float32's.
    least, largest = np.linalg.eigvalsh(within)[[0, -1]]
    if not least > 1e-10 * largest:
        raise UserError(
            "LDA needs features that vary independently inside the classes, but some "
            "are constant or follow from others",
            remedy="look for a fault in the features, or splice fewer frames",
        )
    inverse = np.linalg.inv(np.linalg.cholesky(within))
    ratios, directions = np.linalg.eigh(inverse @ between @ inverse.T)
    ratios = np.maximum(ratios[::-1], 0.0)
    full = directions[:, ::-1].T @ inverse
    top = np.argmax(np.abs(full), axis=1)
    full *= np.sign(full[np.arange(len(full)), top])[:, None]
    full *= np.sqrt((within_class_factor + ratios) / (1.0 + ratios))[:, None]
    return LdaEstimate(full, ratios, statistics.mean)


@njit(cache=True, nogil=True)
def add_by_class(frames, classes, counts, sums):
    """Add each frame to the sum of its class, in the order of the frames.

    Args:
        frames: float32[T, D].
        classes: int32[T], -1 for a frame that does not count.
        counts: float64[C], added to.
        sums: float64[C, D], added to.
    """
    for t in range(len(classes)):
        c = classes[t]
        if c >= 0:
            counts[c] += 1.0
            for d in range(frames.shape[1]):
                sums[c, d] += np.float64(frames[t, d])
