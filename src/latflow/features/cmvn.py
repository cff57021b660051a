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
from latflow.features.options import (
    CmvnOptions,
    LevelCmvn,
    NoCmvn,
    OnlineCmvn,
    SlidingCmvn,
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
        if isinstance(self.options, SlidingCmvn | OnlineCmvn | LevelCmvn):
            return _windows(self.options)
        return None

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
        if isinstance(self.options, LevelCmvn):
            from latflow.features.cmvn_kernels import level_part

            level_part(frames, first, first + len(out), self.windows, out)
            return out
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
        if isinstance(self.options, LevelCmvn):
            from latflow.features.cmvn_kernels import level_by_utterance

            return level_by_utterance(frames, begin, self.windows)
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


def _windows(options: SlidingCmvn | OnlineCmvn | LevelCmvn) -> Windows:
    """Return the options as kernels take them."""
    from latflow.features.cmvn_kernels import Windows

    if isinstance(options, LevelCmvn):
        least = options.min_window
        return Windows(options.window, least, is_centred=False, prior=0, floor=np.nan)
    is_online = isinstance(options, OnlineCmvn)
    floor = _SMALLEST_VARIANCE if is_online else _SMALLEST_SLIDING_VARIANCE
    return Windows(
        length=options.window,
        least=0 if is_online else options.min_window,
        is_centred=not is_online and options.center,
        prior=options.global_frames if is_online else 0,
        floor=floor if options.norm_vars else np.nan,
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
    """Normalization, `sliding` or `online`, of frames that arrive in pieces.

    However they are cut, the result has the same bits. With `online` they are those of
    `normalize`, and no frame waits. With `sliding` they differ in the last place, since
    `normalize` takes sums about the mean of the whole; the first frames wait until
    `min_window` are there.

    Args:
        options: of windows that end with their frames (`center: false`).
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
        options: SlidingCmvn | OnlineCmvn,
        stats: np.ndarray | None = None,
        speaker: CmvnState | None = None,
    ) -> None:
        self._windows = _windows(options)
        if self._windows.is_centred:
            raise ValueError("a window around the frame needs frames to come")
        self._speaker = speaker
        self._origin: np.ndarray | None = None  # keeps sums small
        self._variance: np.ndarray | float = 0.0
        self._dim = 0
        if stats is not None:
            self._origin, self._variance = _moments(_checked(stats))
            self._dim = len(self._origin)
        self._waiting: list[np.ndarray] = []
        self._num_frames = self._num_done = 0
        # [T', 2, D], of frames and their squares over those before `_first`, before the
        # next one, ...
        self._sums, self._first = np.empty(0), 0

    @property
    def state(self) -> CmvnState | None:
        """Return the statistics up to now; None with `sliding`, or of no frame."""
        speaker = self._speaker
        if not self._num_frames or not self._windows.prior:
            return speaker
        count, sums = float(self._num_frames), self._sums[-1]
        if speaker is not None:
            count, sums = count + speaker.count, sums + speaker.sums
        kept = min(1.0, self._windows.length / count)
        return CmvnState(kept * count, kept * sums)

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Take the next frames [T, D]; return those ready, float32 [T', D]."""
        self._dim = frames.shape[1]
        if len(frames):
            self._add(frames.astype(np.float64))
        is_enough = self._num_frames >= self._windows.least
        return self._advance(self._num_frames if is_enough else 0)

    def finish(self) -> np.ndarray:
        """Return the frames that were waiting, float32 [T, D]."""
        return self._advance(self._num_frames)

    def _add(self, exact: np.ndarray) -> None:
        if self._origin is None:
            self._origin = exact[0]
        if not self._num_frames:
            self._sums = np.zeros((1, 2, self._dim))
        exact = exact - self._origin
        powers = np.stack([exact, exact**2], axis=1)
        sums = np.cumsum(np.concatenate([self._sums[-1:], powers]), axis=0)
        self._sums = np.concatenate([self._sums, sums[1:]])
        self._waiting.append(exact)
        self._num_frames += len(exact)

    def _advance(self, end: int) -> np.ndarray:
        """Normalize frames up to `end`, forget what is no longer needed."""
        if end <= self._num_done:
            return np.empty((0, self._dim), np.float32)
        # Imported here: it brings Numba, see `SetCmvn.block`.
        from latflow.features.cmvn_kernels import windows_of

        windows = self._windows
        begin, behind, weight = windows_of(
            self._num_done, end, self._num_frames, windows
        )
        sums = self._sums[behind - self._first] - self._sums[begin - self._first]
        own = behind - begin
        if self._speaker is not None and self._speaker.count:
            share = np.minimum(windows.length - own, self._speaker.count)
            weight = np.minimum(windows.length - own - share, windows.prior)
            factors = (share / self._speaker.count)[:, np.newaxis, np.newaxis]
            sums, own = sums + factors * self._speaker.sums, own + share
        count = (own + weight)[:, np.newaxis]
        mean = sums[:, 0] / count  # what is known adds nothing to one about its own
        normalized = np.concatenate(self._waiting) - mean
        if not np.isnan(windows.floor):
            squares = sums[:, 1] + weight[:, np.newaxis] * self._variance
            variance = np.maximum(squares / count - mean**2, windows.floor)
            normalized /= np.sqrt(variance)
            normalized[count[:, 0] == 1] = 0.0  # of one frame alone
        self._waiting, self._num_done = [], end
        drop = max(0, end - windows.length - self._first)
        self._sums, self._first = self._sums[drop:], self._first + drop
        return normalized.astype(np.float32)


class LevelStream:
    """Normalization by level, of frames that arrive in pieces: the bits of `normalize`.

    The first frames wait until `min_window` are there.
    """

    def __init__(self, options: LevelCmvn) -> None:
        self._windows = _windows(options)
        self._waiting: list[np.ndarray] = []
        self._loudness = np.empty(0, np.float32)  # of the frames from `_first` on
        self._first = self._num_frames = self._num_done = self._dim = 0

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Take the next frames [T, D]; return those ready, float32 [T', D]."""
        from latflow.features.cmvn_kernels import loudness_of

        self._dim = frames.shape[1]
        frames = np.ascontiguousarray(frames, np.float32)
        self._waiting.append(frames)
        self._loudness = np.concatenate([self._loudness, loudness_of(frames)])
        self._num_frames += len(frames)
        is_enough = self._num_frames >= self._windows.least
        return self._advance(self._num_frames if is_enough else 0)

    def finish(self) -> np.ndarray:
        """Return the frames that were waiting, float32 [T, D]."""
        return self._advance(self._num_frames)

    def _advance(self, end: int) -> np.ndarray:
        if end <= self._num_done:
            return np.empty((0, self._dim), np.float32)
        from latflow.features.cmvn_kernels import levels_of, windows_of

        begin, behind, _ = windows_of(
            self._num_done, end, self._num_frames, self._windows
        )
        levels = levels_of(self._loudness, begin - self._first, behind - self._first)
        frames = np.concatenate(self._waiting)
        self._waiting, self._num_done = [], end
        drop = max(0, end - self._windows.length - self._first)
        self._loudness, self._first = self._loudness[drop:], self._first + drop
        return frames - levels[:, np.newaxis]


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
