"""Training of i-vector extractors: background mixture, then EM.

Source: Kaldi `steps/online/nnet2/{get_pca_transform,train_diag_ubm,
train_ivector_extractor}.sh`, `gmmbin/gmm-global-init-from-feats.cc`,
`ivector/ivector-extractor.cc`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.transform import Splice
from latflow.files import atomic_directory
from latflow.gmm.ivector import (
    MODEL,
    Extractor,
    FrameProjection,
    IvectorModel,
    gaussian_posteriors,
)
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import IvectorOptions
from latflow.gmm.update import UpdateOptions, split, update_gmms
from latflow.logs import progress

log = logging.getLogger(__name__)

# Kaldi's `IvectorExtractorEstimationOptions`.
_LEAST_COUNT = 100.0  # frames that a Gaussian's parameters are estimated from
_VARIANCE_FLOOR = 0.1  # share of the mean covariance
_INITIAL_OFFSET = 100.0
_BATCH = 32  # utterances that go through the E-step together
_BLOCK = 8192  # frames
_PROJECTION_FRAMES = 100_000  # that the projection is estimated on, at most
_MIXTURE_FRAMES = 500_000  # that the mixture is estimated on, at most
_MIXTURE_ITERATIONS = 20


def train_ivectors(
    frames_dir: Path, out_dir: Path, *, options: IvectorOptions, seed: int
) -> None:
    """Train an i-vector extractor on the frames of a split (stage).

    Projection (principal components of spliced frames) and background mixture are
    estimated on some of the frames.

    Args:
        frames_dir: a `FrameStore`, best without CMVN.
        out_dir: gets `extractor.npz` and `info.json`, replaced as a whole.
        options: sizes and iterations.
        seed: of the frames that are drawn, and of the first parameters.

    Raises:
        UserError: too few frames or utterances.
    """
    store = FrameStore.load(frames_dir)
    rng = np.random.default_rng([seed, len(store)])
    splice = Splice(options.context, options.context)
    spliced = _sample(store, splice, _PROJECTION_FRAMES, rng)
    projection = _principal(spliced, options)
    projected = _sample(store, projection, _MIXTURE_FRAMES, rng)
    ubm = estimate_mixture(projected, options.num_gaussians, rng)
    extractor = initial_extractor(ubm, options.dim, rng)
    count = min(len(store), options.max_utterances)
    numbers = np.sort(rng.choice(len(store), count, replace=False))
    gains = []
    for iteration in range(options.num_iterations):
        found = ExtractorStatistics.zeros(extractor)
        name = f"i-vectors, iteration {iteration + 1}"
        batches = _batches(store, projection, numbers)
        for batch in progress(batches, name, total=-(-len(numbers) // _BATCH)):
            posteriors = [gaussian_posteriors(ubm, x, options) for x in batch]
            found.add(extractor, batch, posteriors)
        extractor = update_extractor(extractor, found)
        gains.append(found.auxiliary / found.occupancy.sum())
        log.info("iteration %d: %.4f a frame", iteration + 1, gains[-1])
    with atomic_directory(out_dir) as folder:
        IvectorModel(projection, ubm, extractor, options).save(folder / MODEL)
        info = {"auxiliary": gains, "offset": extractor.offset}
        (folder / "info.json").write_text(json.dumps(info) + "\n", encoding="utf-8")


def _sample(
    store: FrameStore,
    transform: Callable[[np.ndarray], np.ndarray],
    most: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw some `most` transformed frames of all utterances, float64 [N, D]."""
    share = min(1.0, most / max(1, store.num_frames))
    drawn = []
    for i in range(len(store)):
        frames = store.frames(i)
        chosen = np.flatnonzero(rng.random(len(frames)) < share)
        if len(chosen):
            drawn.append(transform(frames)[chosen])
    return np.concatenate(drawn).astype(np.float64)


def _principal(sample: np.ndarray, options: IvectorOptions) -> FrameProjection:
    """Return the projection on the principal components of spliced frames."""
    dim = min(options.feature_dim, sample.shape[1])
    if len(sample) <= sample.shape[1]:
        raise UserError(
            f"{len(sample)} frames are too few for an i-vector extractor",
            remedy="check the training set and its ledger",
        )
    mean = sample.mean(0)
    _, vectors = np.linalg.eigh(np.cov(sample.T))
    return FrameProjection(options.context, mean, vectors[:, ::-1][:, :dim].T.copy())


def estimate_mixture(
    frames: np.ndarray, num_gaussians: int, rng: np.random.Generator
) -> DiagGmms:
    """Return a mixture of diagonal Gaussians by EM.

    It begins at random frames, with half of the Gaussians; they are split evenly over
    the first half of the iterations.

    Args:
        frames: float64 [N, D].
        num_gaussians: wanted; those with hardly a frame are removed.
        rng: draws frames, and moves of split Gaussians.

    Source: Kaldi `gmmbin/gmm-global-init-from-feats.cc`.
    """
    count = min(num_gaussians, max(1, len(frames) // 20))
    first = max(1, count // 2)
    means = frames[rng.choice(len(frames), first, replace=False)]
    variances = np.tile(frames.var(0) + 1e-6, (first, 1))
    mixture = DiagGmms.from_moments(
        np.array([0, first]), np.full(first, 1 / first), means, variances
    )
    growing = _MIXTURE_ITERATIONS // 2
    for iteration in range(_MIXTURE_ITERATIONS):
        moments = _moments(mixture, frames)
        mixture, _ = update_gmms(mixture, moments, UpdateOptions(min_occupancy=3.0))
        if iteration < growing:
            target = first + (count - first) * (iteration + 1) // growing
            mixture = split(mixture, np.array([target]), rng)
    return mixture


def _moments(mixture: DiagGmms, frames: np.ndarray) -> np.ndarray:
    """Sum posteriors times [1, x, x^2], float64 [G, 1 + 2 D]."""
    total = np.zeros(mixture.factors.shape)
    for begin in range(0, len(frames), _BLOCK):
        block = frames[begin : begin + _BLOCK]
        powers = np.hstack((np.ones((len(block), 1)), block, np.square(block)))
        powers = powers.astype(np.float32)
        scores = powers @ mixture.factors.T
        scores -= scores.max(1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(1, keepdims=True)
        total += scores.T @ powers
    return total


def _batches(
    store: FrameStore, projection: FrameProjection, numbers: np.ndarray
) -> Iterator[list[np.ndarray]]:
    """Yield projected frames of utterances, some together."""
    for begin in range(0, len(numbers), _BATCH):
        batch = numbers[begin : begin + _BATCH].tolist()
        yield [projection(store.frames(i)) for i in batch]


def initial_extractor(ubm: DiagGmms, dim: int, rng: np.random.Generator) -> Extractor:
    """Return the extractor that EM begins with: the mixture, and random directions.

    Args:
        ubm: one mixture of diagonal Gaussians, G of dimension D.
        dim: elements of an i-vector, S.
        rng: draws the directions.

    Source: Kaldi `Extractor::Extractor`.
    """
    matrices = rng.standard_normal((ubm.num_gaussians, ubm.dim, dim))
    matrices[:, :, 0] = ubm.means / _INITIAL_OFFSET
    inverses = np.zeros((ubm.num_gaussians, ubm.dim, ubm.dim))
    inverses[:, np.arange(ubm.dim), np.arange(ubm.dim)] = ubm.inv_vars
    return Extractor(matrices, inverses, _INITIAL_OFFSET)


@dataclass(eq=False)
class ExtractorStatistics:
    """Statistics of the E-step; those of parts of the data add up.

    Attributes:
        occupancy: float64 [G].
        cross: float64 [G, D, S], sums of frames times i-vectors.
        squares: float64 [G, S, S], sums of i-vectors' second moments, by occupancy.
        second: float64 [G, D, D], sums of frames' second moments.
        ivectors: float64 [S], sum of the i-vectors.
        scatter: float64 [S, S], sum of their second moments.
        count: i-vectors.
        auxiliary: sum of the log-likelihoods' part that i-vectors add.
    """

    occupancy: np.ndarray
    cross: np.ndarray
    squares: np.ndarray
    second: np.ndarray
    ivectors: np.ndarray
    scatter: np.ndarray
    count: int = 0
    auxiliary: float = 0.0

    @classmethod
    def zeros(cls, extractor: Extractor) -> ExtractorStatistics:
        """Return those of no utterances."""
        num_gaussians, dim, size = extractor.matrices.shape
        return cls(
            np.zeros(num_gaussians),
            np.zeros((num_gaussians, dim, size)),
            np.zeros((num_gaussians, size, size)),
            np.zeros((num_gaussians, dim, dim)),
            np.zeros(size),
            np.zeros((size, size)),
        )

    def add(
        self,
        extractor: Extractor,
        frames: list[np.ndarray],
        posteriors: list[np.ndarray],
    ) -> None:
        """Add utterances: of each its frames [T, D] and their posteriors [T, G]."""
        occupancy = np.stack([p.sum(0) for p in posteriors])
        first = np.stack([p.T @ x for p, x in zip(posteriors, frames, strict=True)])
        means, precisions = extractor.posterior(occupancy, first)
        size = extractor.dim
        outer = means[:, :, None] * means[:, None, :]
        moments = np.linalg.inv(precisions) + outer
        self.occupancy += occupancy.sum(0)
        self.cross += np.tensordot(first, means, (0, 0))
        flat = moments.reshape(-1, size * size)
        self.squares += (occupancy.T @ flat).reshape(self.squares.shape)
        self._add_second(np.concatenate(frames), np.concatenate(posteriors))
        self.ivectors += means.sum(0)
        self.scatter += moments.sum(0)
        self.count += len(means)
        fit = np.einsum("us,ust,ut->", means, precisions, means)
        prior = extractor.offset**2 * len(means)
        self.auxiliary += 0.5 * (fit - prior - np.linalg.slogdet(precisions)[1].sum())

    def _add_second(self, frames: np.ndarray, posteriors: np.ndarray) -> None:
        """Add second moments, of each Gaussian those frames that it has a part in."""
        gaussian, frame = np.nonzero(posteriors.T)
        begin = np.searchsorted(gaussian, np.arange(len(self.second) + 1))
        for g in np.flatnonzero(np.diff(begin)):
            rows = frame[begin[g] : begin[g + 1]]
            there = frames[rows]
            self.second[g] += (posteriors[rows, g, None] * there).T @ there


def update_extractor(extractor: Extractor, found: ExtractorStatistics) -> Extractor:
    """Return the maximum-likelihood estimate (the M-step).

    Gaussians with few frames keep their parameters. Covariances are floored at a share
    of their mean. In the end the space of i-vectors is turned and scaled so that they
    have variance one about a point on the first axis.

    Raises:
        UserError: there were no utterances.

    Source: Kaldi `ExtractorStats::Update`.
    """
    if found.count < 2:
        raise UserError(
            f"{found.count} utterances are too few for an i-vector extractor",
            remedy="check the training set and its ledger",
        )
    matrices = extractor.matrices.copy()
    is_fed = found.occupancy > _LEAST_COUNT
    log.info("%d of %d Gaussians are estimated", is_fed.sum(), len(is_fed))
    fed = np.flatnonzero(is_fed)
    matrices[fed] = np.linalg.solve(
        found.squares[fed], found.cross[fed].transpose(0, 2, 1)
    ).transpose(0, 2, 1)
    inverses = _new_inverses(extractor, found, matrices, fed)
    turn, offset = _prior_turn(found)
    return Extractor(matrices @ np.linalg.inv(turn), inverses, offset)


def _new_inverses(
    extractor: Extractor,
    found: ExtractorStatistics,
    matrices: np.ndarray,
    fed: np.ndarray,
) -> np.ndarray:
    """Estimate the covariances, and return the inverses of all, float64 [G, D, D]."""
    inverses = extractor.inverses.copy()
    if not len(fed):
        return inverses
    mixed = found.cross[fed] @ matrices[fed].transpose(0, 2, 1)
    explained = matrices[fed] @ found.squares[fed] @ matrices[fed].transpose(0, 2, 1)
    raw = found.second[fed] - mixed - mixed.transpose(0, 2, 1) + explained
    count = found.occupancy[fed, None, None]
    floor = _VARIANCE_FLOOR * raw.sum(0) / count.sum()
    inverses[fed] = [np.linalg.inv(_floored(c, floor)) for c in raw / count]
    return inverses


def _floored(covariance: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Return the covariance, at least the floor in every direction.

    Source: Kaldi `SpMatrix::ApplyFloor`.
    """
    root = np.linalg.cholesky(floor)
    inner = np.linalg.solve(root, np.linalg.solve(root, covariance).T)
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    side = root @ vectors * np.sqrt(np.maximum(values, 1.0))
    return side @ side.T


def _prior_turn(found: ExtractorStatistics) -> tuple[np.ndarray, float]:
    """Return what i-vectors are to be multiplied with, [S, S], and the new offset.

    Source: Kaldi `ExtractorStats::UpdatePrior`.
    """
    mean = found.ivectors / found.count
    covariance = found.scatter / found.count - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    whiten = (vectors / np.sqrt(np.maximum(values, 1e-7))).T
    center = whiten @ mean
    offset = float(np.linalg.norm(center))
    # Householder's reflection takes the mean to the first axis
    normal = center / offset
    normal[0] -= 1.0
    square = normal @ normal
    if square > 0:
        whiten = whiten - np.outer(normal, 2 / square * (normal @ whiten))
    return whiten, offset
