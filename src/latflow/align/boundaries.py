"""Boundaries of phones finer than frames (stage).

A frame of an alignment sees 25 ms of the signal, its features up to 100 ms more, and it
ends on a multiple of 10 ms. Here a phone's halves have a Gaussian each, with a full
covariance, of cepstra without context in short windows close to each other. The
Gaussians are estimated from the halves that the alignment has; then the beginnings of
all halves of an utterance move, by `REACH` at most, to where its cepstra are most
likely. Which phones there are, and their order, stay.

Two passes over the audio, of which memory holds a few utterances: the system that
aligned is not asked, so that any system's alignments are refined alike. A package that
has learnt from boundaries set by hand (`latflow.training.boundary_learning`) needs one.

Source: none for the whole; Yuan et al. 2013, "Automatic phonetic segmentation using
boundary models", has models of the boundaries themselves, which are trained on
boundaries set by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from lhotse import MonoCut

from latflow.align.boundary_model import SHARES, BoundaryModel
from latflow.align.corpus import AlignmentArchive
from latflow.align.short_windows import FRONT_END, ShortWindows, phones_of
from latflow.align.timing import AlignedSet, PhoneTimes, Timer
from latflow.corpus.manifests import at_rate, read_cuts
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.jit import njit
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.ragged import RaggedWriter

REACH = 0.04  # seconds; a frame, where frames are longer
_PARTS = 2  # of a phone
_SHRINKAGE = 50.0  # frames of the pooled covariance that each Gaussian's is mixed with
_FLOOR = 1e-3  # added to variances
_AHEAD = 16  # utterances a thread
_NO_MARGINS = np.zeros((0, len(SHARES)), np.float32)
# Id of an utterance; times of its phones; margins, see `PhoneTimes`; the reason why the
# times are those of frames.
Refined = tuple[str, np.ndarray, np.ndarray, str]


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Gaussians of classes of frames.

    Attributes:
        mean: float64[C, D].
        factor: float64[C, D, D], lower triangles; inverse covariance = factor factor'.
        constant: float64[C], log-likelihood at the mean, less what all have.
    """

    mean: np.ndarray
    factor: np.ndarray
    constant: np.ndarray

    @classmethod
    def of_moments(cls, moments: np.ndarray) -> Gaussians:
        """Estimate them; each covariance is mixed with the mean of all.

        Args:
            moments: float64[C, 1 + D, 1 + D], sums over frames of (1, x) (1, x)'.
        """
        count = np.maximum(moments[:, :1, 0], 1.0)
        mean = moments[:, 0, 1:] / count
        scatter = moments[:, 1:, 1:] - count[:, :, None] * _squares(mean)
        pooled = scatter.sum(0) / max(1.0, moments[:, 0, 0].sum())
        pooled += _FLOOR * np.eye(len(pooled))
        mixed = scatter + _SHRINKAGE * pooled
        covariance = mixed / (moments[:, :1, :1] + _SHRINKAGE)
        factor = np.linalg.cholesky(np.linalg.inv(covariance))
        diagonals = np.diagonal(factor, axis1=1, axis2=2)
        return cls(mean, np.ascontiguousarray(factor), np.log(diagonals).sum(1))


class _Reader:
    """Reads utterances: their alignments, and the cepstra of their audio.

    Args:
        archive: the alignments.
        timer: gives them times.
        windows: of cepstra.
    """

    def __init__(
        self, archive: AlignmentArchive, timer: Timer, windows: ShortWindows
    ) -> None:
        self._archive, self._timer, self._windows = archive, timer, windows
        names = timer.phone_names
        self._numbers = {name: number for number, name in enumerate(names)}
        self.frame_shift = windows.frame_shift

    def moments(self, cut: MonoCut) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (class, sums over frames, see `Gaussians`) of each part of a cut.

        None where its boundaries stay.
        """
        frames = self._windows.of_cut(cut)
        if isinstance(frames, str):
            return None
        classes, begin = self._parts(
            *phones_of(cut, self._archive, self._timer), len(frames)
        )
        if not len(begin):
            return None
        extended = np.hstack([np.ones((len(frames), 1)), frames])
        return classes, np.add.reduceat(_squares(extended), begin, axis=0)

    def total(
        self, moments: Iterable[tuple[np.ndarray, np.ndarray] | None]
    ) -> np.ndarray:
        """Add up the moments of utterances, float64[C, 1 + D, 1 + D]."""
        dim = 1 + FRONT_END.dim
        total = np.zeros((_PARTS * len(self._numbers), dim, dim))
        for found in moments:
            if found is not None:
                np.add.at(total, *found)
        return total

    def refined(self, cut: MonoCut, gaussians: Gaussians, reach: int) -> Refined:
        """Return where the Gaussians set the boundaries of a cut.

        Args:
            gaussians: of all parts of phones.
            reach: frames by which a boundary may move.
        """
        names, times = phones_of(cut, self._archive, self._timer)
        frames = self._windows.of_cut(cut)
        if isinstance(frames, str):
            return cut.id, times, _NO_MARGINS, frames
        classes, begin = self._parts(names, times, len(frames))
        if not len(begin):
            return cut.id, times, _NO_MARGINS, "more parts of phones than short windows"
        found = best_beginnings(
            *(frames, classes, begin, reach),
            *(gaussians.mean, gaussians.factor, gaussians.constant),
        )
        inner = np.round(found[_PARTS::_PARTS] * self.frame_shift, 6)
        moved = np.concatenate([times[:1], inner, times[-1:]])
        return cut.id, moved, _NO_MARGINS, ""

    def _parts(
        self, names: Sequence[str], times: np.ndarray, num_frames: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return class and first frame of each part of phones, int64[P].

        None of them where there are more than frames.
        """
        numbers = np.array([self._numbers[name] for name in names])
        share = np.arange(_PARTS) / _PARTS
        begin = (times[:-1, None] + np.diff(times)[:, None] * share).ravel()
        if num_frames < len(begin):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        classes = (_PARTS * numbers[:, None] + np.arange(_PARTS)).ravel()
        # A frame each at least, without order or length being changed elsewhere.
        order = np.arange(len(begin))
        free = np.maximum.accumulate(np.rint(begin / self.frame_shift) - order)
        return classes, np.clip(free, 0, num_frames - len(begin)).astype(int) + order


def refine_boundaries(
    aligned: AlignedSet,
    out_dir: Path,
    *,
    package_dir: Path | None = None,
    sample_rate: int | None = None,
    threads: int = 1,
) -> None:
    """Write the times of the phones of a split, finer than frames (stage).

    Args:
        aligned: the split.
        out_dir: folder to write, replaced as a whole: a `PhoneTimes`, and
            `ledger.jsonl` with the utterances whose boundaries stay where they are.
        package_dir: the package that aligned; if it has learnt where boundaries are
            (`BoundaryModel`), it says, and Gaussians of the split are not needed.
        sample_rate: that audio is resampled to, Hz; None for that of the first cut.
        threads: utterances at a time; their number changes nothing of the result.

    Raises:
        UserError: parts do not fit each other, or no utterance is aligned.
    """
    archive = AlignmentArchive(aligned.alignments)
    timer = aligned.timer()
    if not len(archive):
        raise UserError(
            "no utterance of the set is aligned",
            file=aligned.alignments,
            remedy="look at the ledger beside it",
        )
    learnt = None if package_dir is None else BoundaryModel.load(package_dir)
    rate = sample_rate or int(next(read_cuts(aligned.cuts)).sampling_rate)
    rate = rate if learnt is None else int(learnt.sample_rate)
    windows = ShortWindows(rate)
    ledger = Ledger("refine_boundaries")

    def with_alignment() -> Iterator[MonoCut]:
        for cut in at_rate(read_cuts(aligned.cuts), rate, may_resample=True):
            if cut.id in archive:
                yield cut

    with (
        worker_pool(threads) as pool,
        atomic_directory(out_dir) as folder,
        RaggedWriter(
            folder, PhoneTimes, row_shapes={"margins": (len(SHARES),)}
        ) as writer,
    ):
        if learnt is None:
            reader = _Reader(archive, timer, windows)
            reach = round(max(REACH, timer.frame_shift) / reader.frame_shift)
            ahead = _AHEAD * threads
            read = in_order(pool, reader.moments, with_alignment(), ahead=ahead)
            bar = progress(read, "measure phones", len(archive))
            gaussians = Gaussians.of_moments(reader.total(bar))
            refined = partial(reader.refined, gaussians=gaussians, reach=reach)
        else:
            refined = partial(_as_learnt, learnt, windows, (archive, timer))
        found = in_order(pool, refined, with_alignment(), ahead=_AHEAD * threads)
        for name, times, margins, reason in progress(found, "refine", len(archive)):
            writer.write(name, times, margins)
            if reason:
                ledger.record(name, reason, action="noted")
        ledger.write(folder / "ledger.jsonl")


def _as_learnt(
    model: BoundaryModel,
    windows: ShortWindows,
    alignments: tuple[AlignmentArchive, Timer],
    cut: MonoCut,
) -> Refined:
    """Return where a model sets the boundaries of a cut."""
    names, times = phones_of(cut, *alignments)
    frames = windows.of_cut(cut)
    if isinstance(frames, str):
        return cut.id, times, _NO_MARGINS, frames
    moved, margins = model.corrected(names, times, frames, windows.frame_shift)
    return cut.id, moved, margins, ""


def _squares(x: np.ndarray) -> np.ndarray:
    """Return x x' of each row, [N, D] -> [N, D, D]."""
    return x[:, :, None] * x[:, None, :]


@njit(cache=True, nogil=True)
def best_beginnings(frames, classes, begin, reach, mean, factor, constant):
    """Find the likeliest beginnings of the parts of an utterance, by Viterbi's search.

    Every frame belongs to one part, every part has a frame at least, the first one
    begins with the utterance. Of equal beginnings the earliest is taken.

    Args:
        frames: float64[T, D].
        classes: int64[P], the Gaussian of each part.
        begin: int64[P], first frame of each part before; ascending, the first is 0.
        reach: frames by which a beginning may move.
        mean: float64[C, D], see `Gaussians`.
        factor: float64[C, D, D], likewise.
        constant: float64[C], likewise.

    Returns:
        int64[P].
    """
    num_frames, num_parts = len(frames), len(classes)
    back = np.zeros((num_parts + 1, 2 * reach + 1), np.int64)
    low, high = 0, 0  # where a part may begin
    best = np.zeros(2 * reach + 1)
    ends = np.zeros(2 * reach + 1)
    for p in range(num_parts):
        if p + 1 < num_parts:
            next_low = max(begin[p + 1] - reach, p + 1)
            next_high = min(begin[p + 1] + reach, num_frames - (num_parts - p - 1))
        else:
            next_low = next_high = num_frames
        c = classes[p]
        # Log-likelihood of the part's frames up to each; frames that belong to it
        # however it begins and ends add nothing.
        sums = np.zeros(next_high - low + 1)
        for t in range(low, next_high):
            gain = 0.0
            if t < high or t >= next_low:
                gain = constant[c] - 0.5 * _distance(frames[t], mean[c], factor[c])
            sums[t - low + 1] = sums[t - low] + gain
        chosen, value = -1, -np.inf
        s = low
        for end in range(next_low, next_high + 1):
            while s < end and s <= high:
                new = best[s - low] - sums[s - low]
                if new > value:
                    chosen, value = s, new
                s += 1
            ends[end - next_low] = value + sums[end - low]
            back[p + 1, end - next_low] = chosen
        best, ends = ends, best
        low, high = next_low, next_high
    found = np.empty(num_parts, np.int64)
    end = num_frames
    for p in range(num_parts - 1, -1, -1):
        low = num_frames if p + 1 == num_parts else max(begin[p + 1] - reach, p + 1)
        end = back[p + 1, end - low]
        found[p] = end
    return found


@njit(cache=True, nogil=True)
def _distance(x, mean, factor):
    """Return the squared Mahalanobis distance of a frame from a mean."""
    total = 0.0
    for column in range(len(x)):
        dot = 0.0
        for row in range(column, len(x)):
            dot += (x[row] - mean[row]) * factor[row, column]
        total += dot * dot
    return total
