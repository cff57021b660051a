"""The E-step of Viterbi training: additive statistics of aligned frames.

Every frame is aligned to one pdf, so that the posteriors concern the Gaussians of that
pdf only. The frames of a chunk are sorted by pdf; each pdf's frames then meet its
Gaussians as two dense products: [1, x, x^2] times the Gaussians' factors gives log
posteriors, posteriors times [1, x, x^2] gives the statistics, summed in float64.

On the CPU a Numba kernel does the pdfs, a few at a time, in several threads. A pdf's
sums are made by one thread in the order of its frames, and chunks are added in their
order: the result has the same bits for any number of threads.

On other devices torch does batches of pdfs (`latflow.gmm.device_estep`); it is imported
only there, since its import takes longer than a small job.

Source: Kaldi `gmm/mle-diag-gmm.cc` (`AccumDiagGmm`), `gmmbin/gmm-acc-stats-ali.cc`.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.gmm import kernels
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.gmm.source import FrameSource
from latflow.jit import njit

_NUM_BLOCKS = 64  # portions of pdfs that threads take one after another


@dataclass(eq=False)
class Statistics:
    """Sufficient statistics of some frames; those of parts of the data add up.

    Attributes:
        moments: float64[G, 1 + 2 D], sums of posterior * [1, x, x^2].
        transitions: float64[I + 1], how often each transition-id was taken.
        log_like: sum over frames of the log-likelihood under the frame's pdf.
        num_frames: how many frames.
    """

    moments: np.ndarray
    transitions: np.ndarray
    log_like: float
    num_frames: int

    @classmethod
    def zeros(cls, model: AcousticModel) -> Statistics:
        """Return statistics of no frames."""
        shape = (model.gmms.num_gaussians, 1 + 2 * model.gmms.dim)
        counts = np.zeros(model.transitions.num_transition_ids + 1)
        return cls(np.zeros(shape), counts, 0.0, 0)

    def __add__(self, other: Statistics) -> Statistics:
        """Return the statistics of both parts of the data."""
        return Statistics(
            self.moments + other.moments,
            self.transitions + other.transitions,
            self.log_like + other.log_like,
            self.num_frames + other.num_frames,
        )

    @property
    def occupancy(self) -> np.ndarray:
        """Summed posteriors of each Gaussian, in frames, float64[G]."""
        return self.moments[:, 0]

    @property
    def log_like_per_frame(self) -> float:
        """Mean log-likelihood of a frame; 0 if there are none."""
        return self.log_like / self.num_frames if self.num_frames else 0.0


def checked_device(device: str) -> str:
    """Return the name of a device that this machine has.

    Raises:
        UserError: it has none.
    """
    if device == "cpu":
        return device
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"configuration gmm.device: torch finds no {device} device here",
            remedy="set gmm.device: cpu, or run on a machine with a GPU",
        )
    return device


def accumulate(
    model: AcousticModel,
    source: FrameSource,
    alignment: np.ndarray,
    pool: Executor,
    *,
    device: str = "cpu",
) -> Statistics:
    """Return statistics of all aligned frames of a source.

    Args:
        model: the model whose posteriors are used.
        source: the frames, of the model's dimension.
        alignment: int32[sum T], transition-ids; 0 where a frame is not aligned.
        device: where torch computes; `cpu` takes the Numba kernel.

    Raises:
        UserError: the frames have another dimension than the model.
    """
    model.gmms.check_dim(source.dim)
    total = Statistics.zeros(model)
    for frames, ids in source.aligned_chunks(alignment, pool):
        total += accumulate_frames(model, frames, ids, pool, device=device)
    return total


def accumulate_frames(
    model: AcousticModel,
    frames: np.ndarray,
    transition_ids: np.ndarray,
    pool: Executor,
    *,
    device: str = "cpu",
) -> Statistics:
    """Return statistics of frames that lie in memory.

    Args:
        model: the model whose posteriors are used.
        frames: float32[T, D].
        transition_ids: int32[T], 0 where a frame is not aligned.
        device: where torch computes; `cpu` takes the Numba kernel.
    """
    transitions, gmms = model.transitions, model.gmms
    counts = np.bincount(transition_ids, minlength=transitions.num_transition_ids + 1)
    counts[0] = 0
    pdfs = transitions.pdf[transition_ids]
    order, frame_begin = sort_by_pdf(pdfs, gmms.num_pdfs)
    if device == "cpu":
        moments, log_like = _on_cpu(gmms, frames, order, frame_begin, pool)
    else:
        from latflow.gmm.device_estep import moments_on_device

        moments, log_like = moments_on_device(gmms, frames, order, frame_begin, device)
    return Statistics(moments, counts.astype(np.float64), log_like, len(order))


def _on_cpu(
    gmms: DiagGmms,
    frames: np.ndarray,
    order: np.ndarray,
    frame_begin: np.ndarray,
    pool: Executor,
) -> tuple[np.ndarray, float]:
    """Return moments float64[G, 1 + 2 D] and summed log-likelihood of frames.

    Args:
        frames: float32[T, D].
        order: int64[N], frames sorted by pdf.
        frame_begin: int64[P + 1], where each pdf's frames begin in `order`.
    """
    moments = np.zeros((gmms.num_gaussians, 1 + 2 * gmms.dim))
    log_likes = np.zeros(gmms.num_pdfs)
    mixtures = gmms.mixtures

    def do(pdfs: np.ndarray) -> None:
        log_likes[pdfs] = kernels.accumulate(
            frames, order, frame_begin, pdfs, mixtures, moments
        )

    work = np.diff(frame_begin) * np.diff(gmms.begin)
    for _ in pool.map(do, portions(work)):
        pass
    return moments, float(log_likes.sum())


def portions(work: np.ndarray) -> list[np.ndarray]:
    """Return portions of the pdfs with work, the most laborious first, int64[.] each.

    They depend on the work alone, not on the number of threads that share them.
    """
    pdfs = np.argsort(-work, kind="stable")
    pdfs = pdfs[work[pdfs] > 0]
    if not len(pdfs):
        return []
    done = np.cumsum(work[pdfs])
    block = (done - 1) * _NUM_BLOCKS // done[-1]
    return np.split(pdfs, np.flatnonzero(np.diff(block)) + 1)


@njit(cache=True, nogil=True)
def sort_by_pdf(pdfs: np.ndarray, num_pdfs: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort frames by pdf, keeping the order of a pdf's frames.

    Args:
        pdfs: int32[T], pdf of each frame, -1 for none.
        num_pdfs: P.

    Returns:
        (frames that have a pdf, int64[N], by pdf; where each pdf's begin, int64[P+1]).
    """
    begin = np.zeros(num_pdfs + 1, np.int64)
    for t in range(len(pdfs)):
        if pdfs[t] >= 0:
            begin[pdfs[t] + 1] += 1
    for p in range(num_pdfs):
        begin[p + 1] += begin[p]
    place = begin[:-1].copy()
    order = np.empty(begin[-1], np.int64)
    for t in range(len(pdfs)):
        p = pdfs[t]
        if p >= 0:
            order[place[p]] = t
            place[p] += 1
    return order, begin
