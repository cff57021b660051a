"""Cepstral mean and variance normalisation (CMVN), as Kaldi's programs do it.

Statistics are float64 [2, D + 1] in Kaldi's form: sums and the number of frames in the
first row, sums of squares (and a zero) in the second; they add up. `apply_cmvn` uses
them on the frames of a speaker or utterance; `sliding_cmvn` needs none.
"""

from __future__ import annotations

import numpy as np

from latflow.errors import UserError

_SMALLEST_VARIANCE = 1e-20  # Kaldi's floors
_SMALLEST_SLIDING_VARIANCE = 1e-10


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
    count = stats[0, -1]
    if count < 1:
        raise UserError(
            "CMVN statistics of no frames", remedy="check the speaker's utterances"
        )
    mean = stats[0, :-1] / count
    if not norm_vars:
        return frames.astype(np.float32) - mean.astype(np.float32)
    variance = np.maximum(stats[1, :-1] / count - mean**2, _SMALLEST_VARIANCE)
    scale = 1.0 / np.sqrt(variance)
    scaled = frames.astype(np.float32) * scale.astype(np.float32)
    return scaled - (mean * scale).astype(np.float32)


def sliding_cmvn(
    frames: np.ndarray,
    *,
    window: int = 600,
    min_window: int = 100,
    center: bool = False,
    norm_vars: bool = False,
) -> np.ndarray:
    """Normalise each frame by the frames around it, or before it.

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
    exact = frames.astype(np.float64)
    begin, end = _sliding_windows(
        len(frames), window=window, min_window=min_window, center=center
    )
    count = (end - begin)[:, np.newaxis].astype(np.float64)
    origin = exact.mean(axis=0) if len(exact) else 0.0  # keeps cumulative sums small
    exact = exact - origin
    mean = _window_sums(exact, begin, end) / count
    centred = exact - mean
    if norm_vars:
        variance = _window_sums(exact**2, begin, end) / count - mean**2
        centred /= np.sqrt(np.maximum(variance, _SMALLEST_SLIDING_VARIANCE))
        centred[count[:, 0] == 1] = 0.0
    return centred.astype(np.float32)


def _sliding_windows(
    num_frames: int, *, window: int, min_window: int, center: bool
) -> tuple[np.ndarray, np.ndarray]:
    """First frame of each frame's window, and the one after its last."""
    t = np.arange(num_frames)
    if center:
        begin = np.maximum(t - window // 2, 0)
        end = begin + window
    else:
        begin = np.maximum(t - window, 0)
        end = np.maximum(t + 1, min_window)
    overshoot = np.maximum(end - num_frames, 0)
    return np.maximum(begin - overshoot, 0), end - overshoot


def _window_sums(values: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Sums over rows begin[t]..end[t]-1 for every t, [T, D]."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return sums[end] - sums[begin]
