"""Kernels of CMVN that is applied when frames are read.

Apart from `latflow.features.cmvn`, so that jobs that read no frames start without
Numba.
"""

from __future__ import annotations

import numpy as np

from latflow.jit import njit


@njit(cache=True, nogil=True, error_model="numpy")
def normalize_by_windows(
    frames: np.ndarray, windows: np.ndarray, prior: np.ndarray, floor: float
) -> np.ndarray:
    """Normalize each frame by a window of frames and by what is known beforehand.

    Args:
        frames: [T, D].
        windows: int64 [3, T]: first frame of each window, the one after its last, and
            the weight of the prior beside it, in frames.
        prior: float64 [2, D], mean and variance; sums are taken about this mean.
        floor: of variances; NaN leaves them.

    Returns:
        float32 [T, D].
    """
    num_frames, dim = frames.shape
    scales = not np.isnan(floor)
    sums = np.zeros((num_frames + 1, dim))
    squares = np.zeros((num_frames + 1 if scales else 1, dim))
    for t in range(num_frames):
        for d in range(dim):
            x = np.float64(frames[t, d]) - prior[0, d]
            sums[t + 1, d] = sums[t, d] + x
            if scales:
                squares[t + 1, d] = squares[t, d] + x * x
    normalized = np.empty((num_frames, dim), np.float32)
    for t in range(num_frames):
        begin, end, weight = windows[0, t], windows[1, t], windows[2, t]
        count = np.float64(end - begin + weight)
        for d in range(dim):
            # The prior adds nothing to a mean about its own.
            mean = (sums[end, d] - sums[begin, d]) / count
            x = np.float64(frames[t, d]) - prior[0, d] - mean
            if scales:
                square = squares[end, d] - squares[begin, d] + weight * prior[1, d]
                x /= np.sqrt(np.maximum(square / count - mean * mean, floor))
            normalized[t, d] = x
    return normalized


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


@njit(cache=True, nogil=True)
def apply_by_utterance(
    frames: np.ndarray, begin: np.ndarray, affine: np.ndarray
) -> np.ndarray:
    """Return frames x scale - offset, with those of their utterance.

    Args:
        frames: float32 [sum T, D].
        begin: int64 [U + 1], first row of each utterance.
        affine: float32 [2, U, D]: scale and offset of each.

    Returns:
        float32 [sum T, D].
    """
    out = np.empty_like(frames)
    for u in range(len(begin) - 1):
        for t in range(begin[u], begin[u + 1]):
            for d in range(frames.shape[1]):
                out[t, d] = frames[t, d] * affine[0, u, d] - affine[1, u, d]
    return out
