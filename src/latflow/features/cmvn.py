"""Cepstral mean and variance normalization (CMVN), as Kaldi's programs do it.

Statistics are float64 [2, D + 1] in Kaldi's form: sums and the number of frames in the
first row, sums of squares (and a zero) in the second; they add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn_options import (
    CmvnOptions,
    LevelCmvn,
    NoCmvn,
    OnlineCmvn,
    WindowedCmvn,
)
from latflow.kaldi.io import read_matrices

if TYPE_CHECKING:
    from latflow.features.cmvn_kernels import Windows

STATISTICS = "cmvn.ark"  # in a folder of frames
GLOBAL = "global"  # key of the statistics of all speakers
ALL = slice(None)
_SMALLEST_VARIANCE = 1e-20  # Kaldi's floors
_SMALLEST_SLIDING_VARIANCE = 1e-10


def normalize(
    frames: np.ndarray, options: CmvnOptions, stats: np.ndarray | None = None
) -> np.ndarray:
    """Normalize the frames of an utterance: float32 [T, D].

    Args:
        frames: [T, D].
        stats: of the speaker or the corpus, where `options` is about these; None takes
            the utterance's own, which `online` cannot do with.

    Raises:
        UserError: the statistics hold no frame.

    Source: Kaldi `transform/cmvn.cc:ApplyCmvn`; of `sliding`,
    `feat/feature-functions.cc:SlidingWindowCmnInternal` (apply-cmvn-sliding), whose
    running sums are replaced by differences of cumulative ones.
    """
    if isinstance(options, NoCmvn):
        return frames
    if stats is None:
        assert not isinstance(options, OnlineCmvn)
        stats = cmvn_statistics(frames)
    statistics = np.asarray(stats, np.float64)[np.newaxis]
    return SetCmvn(options, statistics, np.zeros(1, np.int32)).one(0, frames)


def cmvn_statistics(frames: np.ndarray) -> np.ndarray:
    """Sum up frames [T, D], T >= 0: float64 [2, D + 1].

    Source: Kaldi `transform/cmvn.cc:AccCmvnStats`.
    """
    exact = frames.astype(np.float64)
    stats = np.zeros((2, frames.shape[1] + 1))
    stats[0, :-1] = exact.sum(axis=0)
    stats[0, -1] = len(frames)
    stats[1, :-1] = np.einsum("td,td->d", exact, exact)
    return stats


@dataclass(frozen=True)
class SetCmvn:
    """Normalization of the utterances of a set, applied when their frames are read.

    Attributes:
        options: not of `none`.
        statistics: float64 [G, 2, D + 1].
        group: int32 [N], row of the statistics that each utterance has.
    """

    options: CmvnOptions
    statistics: np.ndarray
    group: np.ndarray

    @cached_property
    def windows(self) -> Windows | None:
        """Which frames each is normalized by; None where it is all alike."""
        options = self.options
        return _windows(options) if isinstance(options, WindowedCmvn) else None

    @property
    def is_scaled(self) -> bool:
        """Tell whether variances become one too."""
        return getattr(self.options, "norm_vars", False)

    def statistics_of(self, utterances: np.ndarray | slice) -> np.ndarray:
        """Return the statistics of utterances, float64 [B, 2, D + 1].

        Raises:
            UserError: some are of no frame.
        """
        return _checked(self.statistics[self.group[utterances]])

    def one(self, i: int, frames: np.ndarray, part: slice = ALL) -> np.ndarray:
        """Normalize the frames [T, D] of utterance i, or a part: float32 [T', D]."""
        if self.windows is None:
            wanted = frames[part]
            return self.block(wanted, np.array([0, len(wanted)]), i)
        from latflow.features.cmvn_kernels import normalize_part

        first, last, _ = part.indices(len(frames))
        out = np.empty((max(0, last - first), frames.shape[1]), np.float32)
        frames = np.ascontiguousarray(frames, np.float32)
        (stats,) = self.statistics_of(slice(i, i + 1))
        normalize_part(frames, first, first + len(out), stats, self.windows, out)
        return out

    def block(self, frames: np.ndarray, begin: np.ndarray, first: int) -> np.ndarray:
        """Normalize the frames of consecutive utterances.

        Args:
            frames: [sum T, D].
            begin: int64 [U + 1], first row of each utterance; begin[0] is 0.
            first: number of the first utterance.

        Returns:
            float32 [sum T, D].
        """
        # Imported here: it brings Numba, which jobs that read no frames start without.
        from latflow.features.cmvn_kernels import (
            normalize_by_utterance,
            normalize_by_windows,
        )

        frames = np.ascontiguousarray(frames, np.float32)
        statistics = self.statistics_of(slice(first, first + len(begin) - 1))
        if self.windows is None:
            return normalize_by_utterance(frames, begin, statistics, self.is_scaled)
        return normalize_by_windows(frames, begin, statistics, self.windows)


def _checked(stats: np.ndarray) -> np.ndarray:
    """Refuse statistics, [..., 2, D + 1], of no frame."""
    if (stats[..., 0, -1] < 1).any():
        raise UserError(
            "CMVN statistics of no frames", remedy="check the speaker's utterances"
        )
    return stats


def _windows(options: WindowedCmvn) -> Windows:
    """Return the options as kernels take them."""
    from latflow.features.cmvn_kernels import Windows

    is_online = isinstance(options, OnlineCmvn)
    is_loudest = isinstance(options, LevelCmvn)
    floor = _SMALLEST_VARIANCE if is_online else _SMALLEST_SLIDING_VARIANCE
    return Windows(
        length=options.window,
        least=0 if is_online else options.min_window,
        is_centred=not options.is_causal,
        prior=options.global_frames if is_online else 0,
        floor=floor if not is_loudest and options.norm_vars else np.nan,
        is_loudest=is_loudest,
    )


@dataclass(frozen=True, eq=False)
class CmvnState:
    """Statistics of the frames of a speaker so far, for those to come.

    Attributes:
        count: frames that they count for, at most a window of them.
        sums: float64 [2, D], of these frames and their squares, about the mean of the
            training set.
    """

    count: float
    sums: np.ndarray


class CmvnStream:
    """Normalization by windows of frames that arrive in pieces.

    However they are cut, the result has the same bits. With `level` and `online` they
    are those of `normalize`; with `sliding` they differ in the last place, since
    `normalize` takes sums about the mean of the whole. With `online` no frame waits,
    else the first ones do until `min_window` are there.

    Args:
        options: of windows that end with their frames.
        stats: of the training set, float64 [2, D + 1], for `online`.
        speaker: of the same speaker's frames before, for `online`: they fill up a
            window before the training set does.

    Raises:
        ValueError: windows lie around their frames.
        UserError: the statistics hold no frame.

    Source: Kaldi `feat/online-feature.cc:OnlineCmvn` (apply-cmvn-online), where
    `speaker_frames` is the window.
    """

    def __init__(
        self,
        options: WindowedCmvn,
        stats: np.ndarray | None = None,
        speaker: CmvnState | None = None,
    ) -> None:
        self._windows = _windows(options)
        if self._windows.is_centred:
            raise ValueError("a window around the frame needs frames to come")
        self._past = (
            _Loudest()
            if self._windows.is_loudest
            else _RunningSums(self._windows, stats, speaker)
        )
        self._waiting: list[np.ndarray] = []
        self._num_frames = self._num_done = self._dim = 0

    @property
    def state(self) -> CmvnState | None:
        """Return the statistics up to now; None but with `online`, or of no frame."""
        return self._past.state(self._num_frames)

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Take the next frames [T, D]; return those ready, float32 [T', D]."""
        self._dim = frames.shape[1]
        if len(frames):
            self._past.add(frames)
        self._waiting.append(frames)
        self._num_frames += len(frames)
        is_enough = self._num_frames >= self._windows.least
        return self._advance(self._num_frames if is_enough else 0)

    def finish(self) -> np.ndarray:
        """Return the frames that were waiting, float32 [T, D]."""
        return self._advance(self._num_frames)

    def _advance(self, end: int) -> np.ndarray:
        """Normalize frames up to `end`, forget what is no longer needed."""
        if end <= self._num_done:
            return np.empty((0, self._dim), np.float32)
        # Imported here: it brings Numba, see `SetCmvn.block`.
        from latflow.features.cmvn_kernels import windows_of

        place = windows_of(self._num_done, end, self._num_frames, self._windows)
        normalized = self._past.normalize(np.concatenate(self._waiting), *place)
        self._waiting, self._num_done = [], end
        self._past.forget(end - self._windows.length)
        return normalized


class _RunningSums:
    """Sums of a stream's frames, by which the means of windows are subtracted.

    Args:
        windows: whose means, and variances, are taken.
        stats, speaker: see `CmvnStream`.
    """

    def __init__(
        self, windows: Windows, stats: np.ndarray | None, speaker: CmvnState | None
    ) -> None:
        self._windows = windows
        self._speaker = speaker
        self._origin: np.ndarray | None = None  # keeps sums small
        self._variance: np.ndarray | float = 0.0
        if stats is not None:
            self._origin, self._variance = _moments(_checked(stats))
        # [T', 2, D], of frames and their squares over those before `_first`, before the
        # next one, ...
        self._sums, self._first = np.empty(0), 0

    def state(self, num_frames: int) -> CmvnState | None:
        """Return the statistics of all frames; see `CmvnStream.state`."""
        speaker = self._speaker
        if not num_frames or not self._windows.prior:
            return speaker
        count, sums = float(num_frames), self._sums[-1]
        if speaker is not None:
            count, sums = count + speaker.count, sums + speaker.sums
        kept = min(1.0, self._windows.length / count)
        return CmvnState(kept * count, kept * sums)

    def add(self, frames: np.ndarray) -> None:
        """Take the next frames [T, D]; T > 0."""
        exact = frames.astype(np.float64)
        origin = exact[0] if self._origin is None else self._origin
        if not len(self._sums):
            self._sums = np.zeros((1, 2, frames.shape[1]))
        exact, self._origin = exact - origin, origin
        powers = np.stack([exact, exact**2], axis=1)
        sums = np.cumsum(np.concatenate([self._sums[-1:], powers]), axis=0)
        self._sums = np.concatenate([self._sums, sums[1:]])

    def normalize(
        self, frames: np.ndarray, begin: np.ndarray, end: np.ndarray, weight: np.ndarray
    ) -> np.ndarray:
        """Normalize frames [T, D] by the windows of each, see `windows_of`."""
        assert self._origin is not None, "no frames were added"
        sums = self._sums[end - self._first] - self._sums[begin - self._first]
        own, windows = end - begin, self._windows
        if self._speaker is not None and self._speaker.count:
            share = np.minimum(windows.length - own, self._speaker.count)
            weight = np.minimum(windows.length - own - share, windows.prior)
            factors = (share / self._speaker.count)[:, np.newaxis, np.newaxis]
            sums, own = sums + factors * self._speaker.sums, own + share
        count = (own + weight)[:, np.newaxis]
        mean = sums[:, 0] / count  # what is known adds nothing to one about its own
        normalized = frames.astype(np.float64) - self._origin - mean
        if not np.isnan(windows.floor):
            squares = sums[:, 1] + weight[:, np.newaxis] * self._variance
            variance = np.maximum(squares / count - mean**2, windows.floor)
            normalized /= np.sqrt(variance)
            normalized[count[:, 0] == 1] = 0.0  # of one frame alone
        return normalized.astype(np.float32)

    def forget(self, first: int) -> None:
        """Drop what no window from this frame on needs."""
        drop = max(0, first - self._first)
        self._sums, self._first = self._sums[drop:], self._first + drop


class _Loudest:
    """Loudness of a stream's frames, the largest of which is subtracted.

    It has the methods of `_RunningSums`.
    """

    def __init__(self) -> None:
        self._loudness = np.empty(0, np.float32)  # of the frames from `_first` on
        self._first = 0

    def state(self, _num_frames: int) -> None:
        """Return nothing: a stream knows none of those before it."""

    def add(self, frames: np.ndarray) -> None:
        """Take the next frames [T, D]."""
        from latflow.features.cmvn_kernels import loudness_of

        loudness = loudness_of(np.ascontiguousarray(frames, np.float32))
        self._loudness = np.concatenate([self._loudness, loudness])

    def normalize(
        self, frames: np.ndarray, begin: np.ndarray, end: np.ndarray, _: np.ndarray
    ) -> np.ndarray:
        """Normalize frames [T, D] by the windows of each, see `windows_of`."""
        from latflow.features.cmvn_kernels import levels_of

        levels = levels_of(self._loudness, begin - self._first, end - self._first)
        return frames.astype(np.float32, copy=False) - levels[:, np.newaxis]

    def forget(self, first: int) -> None:
        """Drop what no window from this frame on needs."""
        drop = max(0, first - self._first)
        self._loudness, self._first = self._loudness[drop:], self._first + drop


def _moments(stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance, [D] each."""
    mean = stats[0, :-1] / stats[0, -1]
    return mean, stats[1, :-1] / stats[0, -1] - mean**2


def read_global_statistics(folder: str | Path) -> np.ndarray:
    """Return the statistics of all speakers in a folder's `cmvn.ark`: [2, D + 1].

    Raises:
        UserError: there are none.
    """
    path = Path(folder) / STATISTICS
    for key, stats in read_matrices(path):
        if key == GLOBAL:
            return stats
    raise UserError(
        f"no statistics of the key {GLOBAL}",
        file=path,
        remedy="normalize the training set with cmvn of type online or global",
    )
