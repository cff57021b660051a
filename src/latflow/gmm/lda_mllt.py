"""Training of triphones on spliced, projected features: LDA and MLLT.

Several frames beside each other are projected by linear discriminant analysis to the
few directions in which the pdfs of the source system differ most; a tree is grown on
these; and in some iterations of training MLLT (`latflow.gmm.mllt`) turns the features
so that diagonal covariances fit.

With the total covariance T of the frames, the covariance B of the class means (weighted
by the classes' frames) and the covariance inside the classes W = T - B, the rows of the
transform A are such that

    A W A' = I,    A B A' = diag(ratios),    ratios falling.

Source: Kaldi `steps/train_lda_mllt.sh`, `transform/lda-estimate.cc`, `bin/acc-lda.cc`,
`bin/est-lda.cc`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.transform import Chain, Linear, Splice
from latflow.files import write_text
from latflow.gmm.mllt import MlltAccumulator, estimate_mllt, transform_means
from latflow.gmm.model import AcousticModel
from latflow.gmm.options import LdaMlltOptions
from latflow.gmm.source import FrameSource
from latflow.gmm.train import known_alignments, train_triphones
from latflow.gmm.training import AlignedJob, Kind, Training
from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit
from latflow.kaldi.io import write_matrix
from latflow.lang.directory import Lang
from latflow.parallel import worker_pool

log = logging.getLogger(__name__)

_PIECE_FRAMES = 8192  # made float64 and multiplied together by one thread
_BATCH_FRAMES = 65_536  # spliced frames worked on together


@dataclass(frozen=True, eq=False, kw_only=True)
class LdaMlltJob(AlignedJob):
    """A triphone system on features from LDA and MLLT to be trained."""

    options: LdaMlltOptions


def train_lda_mllt(job: LdaMlltJob) -> None:
    """Train a triphone system on features from LDA and MLLT (stage).

    Writes what `train_mono` does, and `final.mat` (LDA, then all MLLT), `full.mat` (all
    directions of LDA), `splice_opts`. Frames are spliced as they are stored: the
    `transform` of all systems does not apply.

    Raises:
        UserError: no usable data or alignments, too few pdfs for the dimension wanted,
            or too many utterances fail to align.
    """
    options, alignments = job.options, job.alignments
    splice = Splice(options.splice_left, options.splice_right)
    old = AcousticModel.load(job.source_dir / "final.mdl").transitions
    if alignments.with_name("trans.ark").exists():
        log.info("alignments of an adapted system; LDA takes its frames unadapted")
    # The spliced frames are needed once, so nothing of them is kept.
    spliced = job.source(splice, cache_bytes=0)
    dim, threads = options.lda_dim, job.threads
    lda = lda_of(spliced, alignments, old, job.lang, dim, threads=threads)
    source = job.source(Chain([splice, Linear(lda.matrix(dim))]))
    kind = _LdaMllt(options, tuple(job.lang.silence_phones), splice, lda)
    train_triphones(job, source, old, kind)


def lda_of(
    spliced: FrameSource,
    alignments: Path,
    model: TransitionModel,
    lang: Lang,
    dim: int,
    *,
    threads: int,
) -> LdaEstimate:
    """Estimate LDA with pdfs as classes, leaving silence out.

    Args:
        alignments: archive of alignments of their utterances.
        model: the transition model of the alignments.
        lang: determines which phones are silence.
        dim: dimensions wanted.

    Source: Kaldi's `ali-to-post | weight-silence-post 0.0 | acc-lda`, `est-lda`; all
    frames count here, Kaldi takes a quarter of them at random.
    """
    statistics = LdaAccumulator.zeros(model.num_pdfs, spliced.dim)
    pdf_of_id = pdfs_without(lang.silence_phones, model)
    with worker_pool(threads) as pool:
        for frames, ids in _batches(spliced, alignments):
            statistics.accumulate(frames, pdf_of_id[ids], pool)
    lda = estimate_lda(statistics, dim=dim)
    kept = lda.ratios[:dim]
    log.info(
        "LDA on %.0f frames: %d of %d dimensions keep %.2f %% of the sum of variance "
        "ratios (first %.3f, last %.4f)",
        statistics.num_frames,
        len(kept),
        len(lda.ratios),
        100 * kept.sum() / lda.ratios.sum(),
        kept[0],
        kept[-1],
    )
    return lda


def _batches(
    source: FrameSource, alignments: Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (frames float32[n, D], transition-ids int32[n]) of several utterances."""
    frames: list[np.ndarray] = []
    ids: list[np.ndarray] = []
    for u, path in known_alignments(source, alignments):
        frames.append(source.frames(u))
        ids.append(path)
        if sum(map(len, ids)) >= _BATCH_FRAMES:
            yield np.concatenate(frames), np.concatenate(ids)
            frames, ids = [], []
    if ids:
        yield np.concatenate(frames), np.concatenate(ids)


def pdfs_without(phones: Sequence[int], model: TransitionModel) -> np.ndarray:
    """Return the pdf of each transition-id, int32; -1 for some phones and for id 0."""
    pdfs = model.pdf.astype(np.int32, copy=True)
    pdfs[np.isin(model.phone, phones)] = -1
    pdfs[0] = -1
    return pdfs


@dataclass(frozen=True, eq=False)
class _LdaMllt(Kind):
    """Turns the features in some iterations of training.

    Attributes:
        options: of the system.
        silence_phones: phones whose frames do not count.
        splice: what comes before the matrix.
        lda: the first matrix.
    """

    options: LdaMlltOptions
    silence_phones: tuple[int, ...]
    splice: Splice
    lda: LdaEstimate

    def refine(
        self, model: AcousticModel, training: Training, iteration: int
    ) -> AcousticModel:
        """Estimate MLLT and move features and means by it, if it is time for that."""
        if iteration not in self.options.mllt_iterations:
            return model
        statistics, pool = MlltAccumulator.zeros(model.gmms.dim), training.pool
        pdf_of_id = pdfs_without(self.silence_phones, model.transitions)
        present, device = training.source, training.device
        for frames, ids in present.aligned_chunks(training.alignment, pool):
            pdfs = pdf_of_id[ids]
            statistics.accumulate(model.gmms, frames, pdfs, pool, device=device)
        estimate = estimate_mllt(statistics)
        log.info(
            "iteration %d: MLLT gains %.4f in log-likelihood a frame, over %.0f frames",
            iteration,
            estimate.gain_per_frame,
            estimate.count,
        )
        training.transform_gain = estimate.gain_per_frame
        assert isinstance(present.transform, Chain)
        linear = present.transform.transforms[-1]
        assert isinstance(linear, Linear)
        matrix = estimate.matrix @ linear.matrix.astype(np.float64)
        transform = Chain([self.splice, Linear(matrix)])
        training.source = FrameSource(present.store, transform, present.utterances)
        gmms = transform_means(model.gmms, estimate.matrix)
        return AcousticModel(model.transitions, gmms)

    def finish(self, model: AcousticModel, training: Training) -> dict[str, Any]:  # noqa: ARG002
        """Write all directions of LDA, and the options of Kaldi's `splice-feats`."""
        folder, splice = training.job.out_dir, self.splice
        write_matrix(folder / "full.mat", self.lda.full.astype(np.float32))
        line = f"--left-context={splice.left} --right-context={splice.right}\n"
        write_text(folder / "splice_opts", line)
        gains = [row.transform_gain or 0.0 for row in training.history]
        spliced_dim = splice.dim_out(training.source.store.dim)
        return {"spliced_dim": spliced_dim, "mllt_gain_per_frame": sum(gains)}


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
        """Return statistics of no frames."""
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
            exact = frames[piece][is_used[piece]].astype(np.float64)
            return exact.T @ exact

        for part in pool.map(do, pieces):
            self.scatter += part

    @property
    def num_frames(self) -> float:
        """Frames of all classes."""
        return float(self.counts.sum())

    @property
    def mean(self) -> np.ndarray:
        """Mean of all frames, float64[D]."""
        return self.sums.sum(axis=0) / self.num_frames

    def covariances(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariances inside classes and of their means, float64[D, D]."""
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
        """Return the first rows, float64[dim, D].

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
        dim: how many directions are wanted; checked against what there is.
        within_class_factor: variance that remains inside the classes in every
            direction; less than 1 shrinks directions that separate classes badly.

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
