"""Labelled utterances, whole or in chunks: what a network is trained on.

An utterance without labels, or whose number of labels is not that of its frames, is
left out and goes into the ledger. Labels may also come at the rate of the network's
output (one for `subsampling` frames), as alignments made with such a network do.

A chunk has frames that are *counted* (they have targets) and, where wanted, frames of
*context* around them that the network sees and that are not counted. With chunks of
`size` frames every `step` frames (step <= size), chunk k of an utterance of T frames
counts the frames [k step, min(k step + size, T)), and the last chunk is the first one
that reaches T. So a frame counts once where step = size, and once for each chunk that
it lies in where chunks overlap (as RETURNN counts); overlap that is to be seen but not
counted is what `context` is for.

The last chunk of an utterance is mostly shorter. It would be padded to the length of
the others; instead it reaches back over frames that the chunk before has counted, which
cost as much as padding and are context here.

With a subsampling factor s of the network, all chunks begin at multiples of s, so that
the frames of the output are the same as those of the whole utterance. The network then
has an output for one frame of s only; a *shift* of 0..s-1 frames, which leaves out so
many at the start of each utterance, chooses which (Kaldi's chain training shifts too).

Nothing is held per chunk: chunks are numbered through, and found by their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from latflow.errors import UserError
from latflow.jit import njit
from latflow.ledger import Ledger
from latflow.page_cache import PageBudget
from latflow.training.data_options import BatchOptions, ChunkOptions
from latflow.training.labels import LabelStore

log = logging.getLogger(__name__)

_BLOCK = 1 << 16  # chunks that are found together


@dataclass(frozen=True)
class Chunks:
    """Chunks of utterances; all fields are int64 [n], frames count from 0.

    Attributes:
        utterance: number of the utterance.
        first: its first frame that the chunk holds.
        length: frames that it holds.
        count_from: first frame of the utterance that is counted.
        count_to: the one after the last.
    """

    utterance: np.ndarray
    first: np.ndarray
    length: np.ndarray
    count_from: np.ndarray
    count_to: np.ndarray

    def __len__(self) -> int:
        return len(self.utterance)

    def select(self, rows: np.ndarray) -> Chunks:
        """Return some of the chunks."""
        return Chunks(
            self.utterance[rows],
            self.first[rows],
            self.length[rows],
            self.count_from[rows],
            self.count_to[rows],
        )


class AnyChunker(Protocol):
    """The chunks of an epoch; see `Chunker`."""

    begin: np.ndarray

    def chunks(self, numbers: np.ndarray) -> Chunks:
        """Find chunks by their numbers."""
        ...

    def lengths(self) -> np.ndarray:
        """Return the frames that each chunk holds."""
        ...


class Chunker:
    """All chunks of a corpus, numbered through.

    Args:
        lengths: int64 [N], frames of each utterance, >= 1.
        options: sizes in frames; None = whole utterances.
        subsampling: s; size, step and left must be multiples of it.
        shift: frames left out at the start; all but the last of a shorter utterance.

    Attributes:
        begin: int64 [N + 1], first chunk of each utterance.

    Raises:
        UserError: sizes that do not fit each other or the subsampling.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        options: ChunkOptions | None,
        *,
        subsampling: int = 1,
        shift: int = 0,
    ) -> None:
        self._shift = np.minimum(shift, lengths - 1)
        self._lengths = lengths = lengths - self._shift
        self._subsampling = subsampling
        self._left = self._right = 0
        self._size = self._step = int(lengths.max(initial=1))
        if options is not None:
            options.check(subsampling)
            self._size, self._step = options.size, options.step or options.size
            self._left, self._right = options.context.left, options.context.right
        beyond = np.maximum(lengths - self._size, 0)
        self.begin = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(1 - (-beyond // self._step), out=self.begin[1:])

    @property
    def num_chunks(self) -> int:
        """Chunks of all utterances."""
        return int(self.begin[-1])

    def chunks(self, numbers: np.ndarray) -> Chunks:
        """Find chunks by their numbers, int64 [n] in 0..num_chunks - 1."""
        utterance = np.searchsorted(self.begin, numbers, side="right") - 1
        total = self._lengths[utterance]
        count_from = (numbers - self.begin[utterance]) * self._step
        count_to = np.minimum(count_from + self._size, total)
        # only the last chunk begins behind the last place where a whole one fits
        fits = np.maximum(total - self._size, 0)
        fits -= fits % self._subsampling
        first = np.maximum(np.minimum(count_from, fits) - self._left, 0)
        length = np.minimum(count_to + self._right, total) - first
        shift = self._shift[utterance]
        return Chunks(
            utterance, first + shift, length, count_from + shift, count_to + shift
        )

    def lengths(self) -> np.ndarray:
        """Return the frames that each chunk holds, int32 [num_chunks]."""
        result = np.empty(self.num_chunks, np.int32)
        for at in range(0, self.num_chunks, _BLOCK):
            numbers = np.arange(at, min(at + _BLOCK, self.num_chunks))
            result[numbers] = self.chunks(numbers).length
        return result


@dataclass(frozen=True)
class Times:
    """Frames of utterances at speeds, against those that their labels are of.

    Frame t has the label of the frame nearest to `speed x (t + center) - center`, whose
    window has the same middle in the speech.

    Attributes:
        speed: float64 [B].
        length: int64 [B], frames of the utterances at speed 1.
        center: middle of frame 0, in frame shifts from the start of the samples.
    """

    speed: np.ndarray
    length: np.ndarray
    center: float

    @classmethod
    def same(cls, count: int) -> Times:
        """Return those of utterances at the speed of their labels."""
        endless = np.full(count, np.iinfo(np.int64).max)
        return cls(np.ones(count), endless, 0.0)


@dataclass(frozen=True)
class Targets:
    """Labels, in a store, of the n utterances that are used.

    Attributes:
        flat: int32, all labels of the store, read only.
        begin: int64 [n], first label of each utterance.
        count: int64 [n], its labels.
        step: int64 [n], frames of the features for one label: 1 or the subsampling.
    """

    flat: np.ndarray
    begin: np.ndarray
    count: np.ndarray
    step: np.ndarray

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        counted: np.ndarray,
        subsampling: int,
        out: np.ndarray,
        times: Times | None = None,
    ) -> None:
        """Write the targets of chunks.

        Args:
            utterance: int64 [B], positions among the n utterances.
            first: int64 [B], first frame of each chunk.
            counted: int64 [B, 2], counted frames: the first, and that after the last.
            subsampling: frames of the features for one of the output.
            out: int64 [B, T'], written as a whole.
            times: of the frames, where utterances have other speeds than their labels.
        """
        begin, count = self.begin[utterance], self.count[utterance]
        times = times or Times.same(len(utterance))
        rows = np.stack(
            (begin, count, self.step[utterance], first, times.length), axis=1
        )
        _gather(self.flat, rows, counted, subsampling, times.speed, times.center, out)

    def hold(self, pages: PageBudget, chunks: Chunks) -> int:
        """Ask for the pages of chunks; returns their bytes.

        Args:
            pages: what they are read into.
            chunks: at the speed of their labels; utterances are positions among the n.
        """
        of, step = chunks.utterance, self.step[chunks.utterance]
        first = np.minimum(chunks.first // step, self.count[of])
        last = np.minimum(-(-(chunks.first + chunks.length) // step), self.count[of])
        return pages.hold(self.flat, self.begin[of] + first, self.begin[of] + last)


@dataclass(frozen=True)
class Cause:
    """Why utterances cannot be used.

    Attributes:
        number: of the utterances.
        what: is wrong with them.
        remedy: against it.
    """

    number: int
    what: str
    remedy: str

    @classmethod
    def of(
        cls,
        is_faulty: np.ndarray,
        utt_ids: list[str],
        reason: Callable[[int], str],
        remedy: str,
    ) -> Cause:
        """Describe utterances, bool [N], by the first of them and its reason."""
        numbers = np.flatnonzero(is_faulty)
        if not len(numbers):
            return cls(0, "", remedy)
        first = int(numbers[0])
        what = f"like {utt_ids[first]}, which {reason(first)}"
        return cls(len(numbers), what, remedy)


@dataclass(frozen=True)
class Labelled:
    """The utterances that are used.

    Attributes:
        utterance: int64 [n], their numbers in the features' store, ascending.
        targets: their labels, by the name of the target.
        num_classes: classes of each target.
        outside: utterances outside of the bounds of length.
    """

    utterance: np.ndarray
    targets: Mapping[str, Targets]
    num_classes: Mapping[str, int]
    outside: Cause

    def select(self, rows: np.ndarray) -> Labelled:
        """Return some of the utterances.

        Args:
            rows: bool [n] or their positions.
        """
        targets = {
            name: Targets(one.flat, one.begin[rows], one.count[rows], one.step[rows])
            for name, one in self.targets.items()
        }
        return replace(self, utterance=self.utterance[rows], targets=targets)


def match_labels(
    utt_ids: list[str],
    lengths: np.ndarray,
    labels: Mapping[str, LabelStore],
    options: BatchOptions,
    *,
    subsampling: int = 1,
    ledger: Ledger | None = None,
    file: str | Path | None = None,
) -> Labelled:
    """Find the utterances that have all labels and lengths within the bounds.

    Those outside of the bounds are left out on purpose: counted and logged in one line,
    not in the ledger.

    Args:
        utt_ids: ids of the N utterances.
        lengths: int64 [N], frames.
        labels: label stores by the name of the target; none = features alone.
        options: bounds of the lengths, and how far labels may differ in number.
        subsampling: frames of the features for one of the output.
        ledger: where utterances that cannot be used are recorded.
        file: the features, for messages.

    Raises:
        UserError: no utterance is left.
    """
    ledger = ledger or Ledger("match_labels")
    is_within = lengths >= options.min_length
    if options.max_length is not None:
        is_within &= lengths <= options.max_length
    found = {
        name: _Found.of(utt_ids, lengths, store, options.length_tolerance, subsampling)
        for name, store in labels.items()
    }
    is_used = is_within.copy()
    outside = _outside(lengths[~is_within], options)
    causes = [outside]
    for name, one in found.items():
        causes += one.causes(name, utt_ids, lengths, is_used)
        for i in np.flatnonzero(is_within & (one.step == 0)):
            ledger.record(utt_ids[i], one.reason(name, int(i), int(lengths[i])))
        is_used &= one.step > 0
    utterance = np.flatnonzero(is_used)
    if outside.number:
        log.info("%d utterances are too short or too long to be used", outside.number)
    if not len(utterance):
        raise none_usable(len(utt_ids), causes, file)
    targets = {
        name: one.targets(labels[name], utterance) for name, one in found.items()
    }
    num_classes = {name: store.num_classes for name, store in labels.items()}
    return Labelled(utterance, targets, num_classes, outside)


def none_usable(
    total: int, causes: Iterable[Cause], file: str | Path | None
) -> UserError:
    """Return the error of a set of which no utterance can be used.

    Args:
        total: its utterances.
        causes: of all of them; the remedy is that of the most.
        file: its features.
    """
    present = [cause for cause in causes if cause.number]
    reasons = ", ".join(f"{cause.number} {cause.what}" for cause in present)
    return UserError(
        f"none of {total} utterances can be used" + (f": {reasons}" if reasons else ""),
        file=file,
        remedy=max(present, key=lambda c: c.number).remedy if present else None,
    )


def _outside(lengths: np.ndarray, options: BatchOptions) -> Cause:
    """Describe utterances of this many frames, outside of the bounds."""
    if not len(lengths):
        return Cause(0, "", "")
    most = "more" if options.max_length is None else f"at most {options.max_length}"
    what = (
        f"of {lengths.min()} to {lengths.max()} frames, where data.min_length and "
        f"data.max_length want {options.min_length} and {most}"
    )
    return Cause(len(lengths), what, "set them to lengths that are there, in frames")


@dataclass(frozen=True)
class _Found:
    """Labels of all N utterances of the features.

    Attributes:
        index: int64 [N], number of the utterance in the label store, -1 = not there.
        count: int64 [N], its labels.
        step: int64 [N], frames for one label; 0 = labels do not fit.
    """

    index: np.ndarray
    count: np.ndarray
    step: np.ndarray

    @staticmethod
    def of(
        utt_ids: list[str],
        lengths: np.ndarray,
        store: LabelStore,
        tolerance: int,
        subsampling: int,
    ) -> _Found:
        """Look the utterances up."""
        index = store.positions(utt_ids)
        count = np.append(np.diff(store.begin), 0)[index]
        step = np.zeros(len(index), np.int64)
        step[np.abs(count - -(-lengths // subsampling)) <= tolerance] = subsampling
        step[np.abs(count - lengths) <= tolerance] = 1
        step[index < 0] = 0
        return _Found(index, count, step)

    def causes(
        self, name: str, utt_ids: list[str], lengths: np.ndarray, is_left: np.ndarray
    ) -> tuple[Cause, Cause]:
        """Return why some of the utterances that are left cannot be used."""
        unfit = is_left & (self.step == 0)
        is_there = self.index >= 0

        def reason(i: int) -> str:
            return self.reason(name, i, int(lengths[i]))

        missing = "make features and labels of the same split"
        unlike = "take labels of features with the same frame shift and snip_edges"
        return (
            Cause.of(unfit & ~is_there, utt_ids, reason, missing),
            Cause.of(unfit & is_there, utt_ids, reason, unlike),
        )

    def reason(self, name: str, i: int, length: int) -> str:
        """Return why utterance i cannot be used."""
        if self.index[i] < 0:
            return f"has no labels ({name})"
        return f"has {self.count[i]} labels ({name}), but {length} frames"

    def targets(self, store: LabelStore, utterance: np.ndarray) -> Targets:
        """Return those of the utterances that are used."""
        begin = store.begin[self.index[utterance]]
        count, step = self.count[utterance], self.step[utterance]
        return Targets(store.flat, begin, count, step)


@njit(cache=True, nogil=True)
def _gather(
    flat: np.ndarray,
    rows: np.ndarray,
    counted: np.ndarray,
    subsampling: int,
    speed: np.ndarray,
    center: float,
    out: np.ndarray,
) -> None:
    """Set out[b, j] = label of frame first[b] + j x subsampling if counted, else -1.

    Args:
        flat: int32, all labels.
        rows: int64 [B, 5]: first label of the utterance, its labels, frames for one
            label, first frame of the chunk, frames of the utterance at speed 1.
        counted: int64 [B, 2].
        subsampling: frames for one of the output.
        speed: float64 [B], see `Times`.
        center: see `Times`.
        out: int64 [B, T'].
    """
    out[:] = -1
    for b in range(out.shape[0]):
        begin, count, step, first, length = rows[b]
        for j in range(out.shape[1]):
            t = first + j * subsampling
            if counted[b, 0] <= t < counted[b, 1]:
                if speed[b] != 1.0:
                    nearest = np.floor(speed[b] * (t + center) - center + 0.5)
                    t = min(max(np.int64(nearest), 0), length - 1)
                if t // step < count:
                    out[b, j] = flat[begin + t // step]
