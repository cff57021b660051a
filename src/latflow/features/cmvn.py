"""Cepstral mean and variance normalization (CMVN), as Kaldi's programs do it.

Statistics are float64 [2, D + 1] in Kaldi's form: sums and the number of frames in the
first row, sums of squares (and a zero) in the second; they add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.options import CmvnOptions, NoCmvn, OnlineCmvn, SlidingCmvn
from latflow.kaldi.io import read_matrices

STATISTICS = "cmvn.ark"  # in a folder of frames
GLOBAL = "global"  # key of the statistics of all speakers
_SMALLEST_VARIANCE = 1e-20  # Kaldi's floors
_SMALLEST_SLIDING_VARIANCE = 1e-10


def normalize(
    frames: np.ndarray, options: CmvnOptions, stats: np.ndarray | None = None
) -> np.ndarray:
    """Normalize the frames [T, D] of an utterance: float32 [T, D].

    Args:
        frames: [T, D].
        stats: of the speaker or the corpus, where `options` is about these; None takes
            the utterance's own, which `online` cannot do with.
    """
    if isinstance(options, NoCmvn):
        return frames
    if isinstance(options, SlidingCmvn):
        return sliding_cmvn(
            frames,
            window=options.window,
            min_window=options.min_window,
            center=options.center,
            norm_vars=options.norm_vars,
        )
    if isinstance(options, OnlineCmvn):
        assert stats is not None
        return online_cmvn(frames, options, stats)
    if stats is None:
        stats = cmvn_statistics(frames)
    return apply_cmvn(frames, stats, norm_vars=options.norm_vars)


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


def apply_cmvn(
    frames: np.ndarray, stats: np.ndarray, *, norm_vars: bool = False
) -> np.ndarray:
    """Subtract the mean, and divide by the standard deviation if asked.

    Args:
        frames: [T, D].
        stats: [2, D + 1], of at least one frame.
        norm_vars: whether variances become one too.

    Returns:
        float32 [T, D].

    Raises:
        UserError: the statistics hold no frame.

    Source: Kaldi `transform/cmvn.cc:ApplyCmvn`; a variance below 1e-20 counts as 1e-20.
    """
    scale, offset = affine_of(stats, norm_vars=norm_vars)
    return frames.astype(np.float32) * scale - offset


def affine_of(stats: np.ndarray, *, norm_vars: bool) -> np.ndarray:
    """Return what `apply_cmvn` does as frames x scale - offset.

    Args:
        stats: [..., 2, D + 1].
        norm_vars: see `apply_cmvn`.

    Returns:
        float32 [2, ..., D]: scale (1 without `norm_vars`) and offset.

    Raises:
        UserError: the statistics hold no frame.
    """
    mean, variance = _moments(stats)
    if not norm_vars:
        return np.stack([np.ones_like(mean), mean]).astype(np.float32)
    scale = 1.0 / np.sqrt(np.maximum(variance, _SMALLEST_VARIANCE))
    return np.stack([scale, mean * scale]).astype(np.float32)


def _moments(stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance, [..., D] each, of statistics of at least one frame."""
    count = stats[..., 0, -1:]
    if (count < 1).any():
        raise UserError(
            "CMVN statistics of no frames", remedy="check the speaker's utterances"
        )
    mean = stats[..., 0, :-1] / count
    return mean, stats[..., 1, :-1] / count - mean**2


def sliding_cmvn(
    frames: np.ndarray,
    *,
    window: int = 600,
    min_window: int = 100,
    center: bool = False,
    norm_vars: bool = False,
) -> np.ndarray:
    """Normalize each frame by the frames around it, or before it.

    Args:
        frames: [T, D].
        window: frames that mean and variance are taken from, > 0.
        min_window: fewest frames, near the start, if not `center`.
        center: whether the window lies around the frame; else it ends with it. Near the
            edges it is shifted inwards.
        norm_vars: whether variances become one too (a window of one frame gives zero).

    Returns:
        float32 [T, D].

    Source: Kaldi `feat/feature-functions.cc:SlidingWindowCmnInternal`
    (apply-cmvn-sliding); running sums are replaced by differences of cumulative ones.
    """
    begin, end = _sliding_windows(
        len(frames), window=window, min_window=min_window, center=center
    )
    dim = frames.shape[1]
    # An origin keeps cumulative sums small.
    origin = frames.astype(np.float64).mean(axis=0) if len(frames) else np.zeros(dim)
    windows = np.stack([begin, end, np.zeros_like(begin)])
    prior = np.stack([origin, np.zeros(dim)])
    floor = _SMALLEST_SLIDING_VARIANCE if norm_vars else np.nan
    normalized = _normalize_by_windows(frames, windows, prior, floor)
    if norm_vars:
        normalized[end - begin == 1] = 0.0
    return normalized


def online_cmvn(
    frames: np.ndarray, options: OnlineCmvn, stats: np.ndarray
) -> np.ndarray:
    """Normalize the frames [T, D] of an utterance as `OnlineCmvnStream` does."""
    windows = np.stack(_online_windows(options, 0, len(frames)))
    floor = _SMALLEST_VARIANCE if options.norm_vars else np.nan
    prior = np.stack(_moments(stats))
    return _normalize_by_windows(frames, windows, prior, floor)


def _online_windows(
    options: OnlineCmvn, first: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return begin and end of the windows of frames, and the training set's weight."""
    end = first + np.arange(1, count + 1)
    begin = np.maximum(end - options.window, 0)
    weight = np.minimum(options.window - (end - begin), options.global_frames)
    return begin, end, weight


def _normalize_by_windows(
    frames: np.ndarray, windows: np.ndarray, prior: np.ndarray, floor: float
) -> np.ndarray:
    """See `latflow.features.cmvn_kernels`."""
    # Imported here: it brings Numba, which jobs that read no frames start without.
    from latflow.features.cmvn_kernels import normalize_by_windows

    return normalize_by_windows(frames, windows, prior, floor)


def _sliding_windows(
    num_frames: int, *, window: int, min_window: int, center: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first frame of each frame's window, and the one after its last."""
    t = np.arange(num_frames)
    if center:
        begin = np.maximum(t - window // 2, 0)
        end = begin + window
    else:
        begin = np.maximum(t - window, 0)
        end = np.maximum(t + 1, min_window)
    overshoot = np.maximum(end - num_frames, 0)
    return np.maximum(begin - overshoot, 0), end - overshoot


@dataclass(frozen=True)
class SetCmvn:
    """Normalization of the utterances of a set, applied when their frames are read.

    Attributes:
        options: not of `none`.
        statistics: float64 [G, 2, D + 1]; of `sliding`, which needs none, empty.
        group: int32 [N], row of the statistics that each utterance has.
    """

    options: CmvnOptions
    statistics: np.ndarray
    group: np.ndarray

    @property
    def is_affine(self) -> bool:
        """Tell whether all frames of an utterance are normalized alike."""
        return not isinstance(self.options, SlidingCmvn | OnlineCmvn)

    def affine(self, utterances: np.ndarray | slice) -> np.ndarray:
        """Return scale and offset of utterances, float32 [2, B, D]; see `affine_of`."""
        norm_vars = getattr(self.options, "norm_vars", False)
        return affine_of(self.statistics[self.group[utterances]], norm_vars=norm_vars)

    def block(self, frames: np.ndarray, begin: np.ndarray, first: int) -> np.ndarray:
        """Normalize the frames of consecutive utterances.

        Args:
            frames: float32 [sum T, D].
            begin: int64 [U + 1], first row of each utterance; begin[0] is 0.
            first: number of the first utterance.

        Returns:
            float32 [sum T, D].
        """
        count = len(begin) - 1
        if self.is_affine:
            from latflow.features.cmvn_kernels import apply_by_utterance

            affine = self.affine(slice(first, first + count))
            return apply_by_utterance(frames, begin, affine)
        # Of `online`, the training set's.
        stats = self.statistics[0] if len(self.statistics) else None
        found = [
            normalize(frames[begin[u] : begin[u + 1]], self.options, stats)
            for u in range(count)
        ]
        return found[0] if count == 1 else np.concatenate(found)


class _RunningSums:
    """Sums of frames and of their squares over windows of the frames so far.

    They do not depend on how the frames are cut. Float64 keeps their precision where
    frames are small beside their spread: about an origin.

    Args:
        dim: elements of a frame.
    """

    def __init__(self, dim: int) -> None:
        # [T', 2, D], over the frames before `_first`, before the next one, ...
        self._sums = np.zeros((1, 2, dim))
        self._first = 0

    def add(self, frames: np.ndarray) -> None:
        """Take the next frames, float64 [T, D]."""
        powers = np.stack([frames, frames**2], axis=1)
        sums = np.cumsum(np.concatenate([self._sums[-1:], powers]), axis=0)
        self._sums = np.concatenate([self._sums, sums[1:]])

    def over(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return sums over frames begin[t]..end[t]-1 for every t, [T, 2, D]."""
        return self._sums[end - self._first] - self._sums[begin - self._first]

    def forget(self, frame: int) -> None:
        """Drop what only windows that begin before a frame need."""
        drop = max(0, frame - self._first)
        self._sums, self._first = self._sums[drop:], self._first + drop


class SlidingCmvnStream:
    """Sliding normalization of frames that arrive in pieces.

    However they are cut, the result has the same bits; it is that of `sliding_cmvn` but
    for rounding (that one takes the mean of the whole from its sums beforehand). The
    first frames wait until `min_window` are there.

    Args:
        options: of a window that ends with the frame (`center: false`).

    Raises:
        ValueError: the window lies around the frame.
    """

    def __init__(self, options: SlidingCmvn) -> None:
        if options.center:
            raise ValueError("a window around the frame needs frames to come")
        self._options = options
        self._waiting: list[np.ndarray] = []
        self._num_frames = self._num_done = 0
        self._origin: np.ndarray | None = None
        self._sums = _RunningSums(0)
        self._dim = 0

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Take the next frames [T, D]; return those ready, float32 [T', D]."""
        self._dim = frames.shape[1]
        if len(frames):
            self._add(frames.astype(np.float64))
        is_enough = self._num_frames >= self._options.min_window
        return self._advance(self._num_frames if is_enough else 0)

    def finish(self) -> np.ndarray:
        """Return the frames that were waiting, float32 [T, D]."""
        return self._advance(self._num_frames)

    def _add(self, exact: np.ndarray) -> None:
        """Sum up frames."""
        if self._origin is None:
            self._origin, self._sums = exact[0], _RunningSums(self._dim)
        exact = exact - self._origin
        self._sums.add(exact)
        self._waiting.append(exact)
        self._num_frames += len(exact)

    def _advance(self, end: int) -> np.ndarray:
        """Normalize frames up to `end`, forget what is no longer needed."""
        if end <= self._num_done:
            return np.empty((0, self._dim), np.float32)
        options = self._options
        t = np.arange(self._num_done, end)
        behind = np.maximum(t + 1, options.min_window)
        overshoot = np.maximum(behind - self._num_frames, 0)  # of short signals alone
        behind = behind - overshoot
        begin = np.maximum(np.maximum(t - options.window, 0) - overshoot, 0)
        count = (behind - begin)[:, np.newaxis].astype(np.float64)
        sums = self._sums.over(begin, behind)
        mean = sums[:, 0] / count
        centred = np.concatenate(self._waiting) - mean
        if options.norm_vars:
            variance = sums[:, 1] / count - mean**2
            centred /= np.sqrt(np.maximum(variance, _SMALLEST_SLIDING_VARIANCE))
            centred[count[:, 0] == 1] = 0.0
        self._waiting, self._num_done = [], end
        self._sums.forget(end - options.window)
        return centred.astype(np.float32)


class OnlineCmvnStream:
    """Online normalization of frames that arrive in pieces; none waits.

    A frame has the statistics of the last `window` frames up to it. Where there are
    fewer yet, those of the training set are added with the weight of `global_frames`
    frames, or of as many as lack. However frames are cut, the result has the same bits.

    Args:
        options: window and weight.
        stats: of the training set, float64 [2, D + 1].

    Raises:
        UserError: the statistics hold no frame.

    Source: Kaldi `feat/online-feature.cc:OnlineCmvn` (apply-cmvn-online), with no
    statistics of the speaker.
    """

    def __init__(self, options: OnlineCmvn, stats: np.ndarray) -> None:
        self._options = options
        self._origin, self._variance = _moments(stats)
        self._sums = _RunningSums(len(self._origin))
        self._num_frames = 0

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Normalize the next frames [T, D]: float32 [T, D]."""
        options = self._options
        exact = frames.astype(np.float64) - self._origin
        self._sums.add(exact)
        begin, end, weight = _online_windows(options, self._num_frames, len(exact))
        count = (end - begin + weight)[:, np.newaxis]
        sums = self._sums.over(begin, end)
        mean = sums[:, 0] / count  # about that of the training set, which adds nothing
        normalized = exact - mean
        if options.norm_vars:
            squares = sums[:, 1] + weight[:, np.newaxis] * self._variance
            variance = squares / count - mean**2
            normalized /= np.sqrt(np.maximum(variance, _SMALLEST_VARIANCE))
        self._num_frames += len(exact)
        self._sums.forget(self._num_frames - options.window)
        return normalized.astype(np.float32)

    def finish(self) -> np.ndarray:
        """Return nothing: no frame waits, float32 [0, D]."""
        return np.empty((0, len(self._origin)), np.float32)


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
