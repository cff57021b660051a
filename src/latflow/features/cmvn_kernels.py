"""Kernels of CMVN that is applied when frames are read.

Apart from `latflow.features.cmvn`, so that jobs that read no frames start without
Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.jit import njit


class Windows(NamedTuple):
    """Which frames each frame is normalized by.

    Attributes:
        length: frames of a window.
        least: fewest frames, at the start, where `is_centred` is false.
        is_centred: whether windows lie around their frames; else they end with them.
        prior: largest weight of what is known beforehand, in frames, where a window is
            not full; 0 moves windows inwards instead.
        floor: of variances; NaN leaves them.
        is_loudest: whether the mean of the loudest frame alone is subtracted, see
            `LevelCmvn`; else means over the frames.
    """

    length: int
    least: int
    is_centred: bool
    prior: int
    floor: float
    is_loudest: bool


@njit(cache=True, nogil=True)
def windows_of(first: int, last: int, num_frames: int, windows: Windows) -> np.ndarray:
    """Return how frames first..last-1 of `num_frames` are normalized.

    Returns:
        int64 [3, T']: first frame of each window, the one after its last, and the
        weight of what is known beforehand.
    """
    found = np.zeros((3, last - first), np.int64)
    for i in range(last - first):
        t = first + i
        if windows.prior > 0:
            begin, end = max(t + 1 - windows.length, 0), t + 1
            found[2, i] = min(windows.length - (end - begin), windows.prior)
        else:
            if windows.is_centred:
                begin = max(t - windows.length // 2, 0)
                end = begin + windows.length
            else:
                begin = max(t - windows.length, 0)
                end = max(t + 1, windows.least)
            overshoot = max(end - num_frames, 0)
            begin, end = max(begin - overshoot, 0), end - overshoot
        found[0, i], found[1, i] = begin, end
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def normalize_part(
    frames: np.ndarray,
    first: int,
    last: int,
    stats: np.ndarray,
    windows: Windows,
    out: np.ndarray,
) -> None:
    """Normalize frames first..last-1 of an utterance by the windows of each.

    Args:
        frames: float32 [T, D], all of the utterance.
        stats: float64 [2, D + 1], of what is known beforehand; sums are taken about
            their mean, which keeps them small.
        out: float32 [last - first, D].
    """
    dim = frames.shape[1]
    place = windows_of(first, last, len(frames), windows)
    if windows.is_loudest:
        start, end = (place[0, 0], place[1].max()) if last > first else (0, 0)
        loudness = loudness_of(frames[start:end])
        levels = levels_of(loudness, place[0] - start, place[1] - start)
        for i in range(last - first):
            for d in range(dim):
                out[i, d] = frames[first + i, d] - levels[i]
        return
    origin = stats[0, :dim] / stats[0, dim]
    known = stats[1, :dim] / stats[0, dim] - origin * origin
    ahead = place[1].max() if last > first else 0
    is_scaled = not np.isnan(windows.floor)
    sums = _running_sums(frames[:ahead], origin, 1)
    squares = _running_sums(frames[: ahead if is_scaled else 0], origin, 2)
    mean, x = np.empty(dim), np.empty(dim)
    for i in range(last - first):
        begin, end, weight = place[0, i], place[1, i], place[2, i]
        count = np.float64(end - begin + weight)
        for d in range(dim):
            # What is known beforehand adds nothing to a mean about its own.
            mean[d] = (sums[end, d] - sums[begin, d]) / count
            x[d] = np.float64(frames[first + i, d]) - origin[d] - mean[d]
        if is_scaled:
            for d in range(dim):
                square = squares[end, d] - squares[begin, d] + weight * known[d]
                variance = square / count - mean[d] * mean[d]
                x[d] /= np.sqrt(np.maximum(variance, windows.floor))
        for d in range(dim):
            out[i, d] = 0.0 if is_scaled and count == 1.0 else x[d]


@njit(cache=True, nogil=True)
def levels_of(loudness: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the largest of the loudness in each window, float32 [N].

    Args:
        loudness: float32 [T], of frames.
        begin, end: int64 [N], first frame of each window, and the one after its last;
            neither decreases.
    """
    found = np.empty(len(begin), np.float32)
    # Frames that no later one in the window is as loud as, the loudest first.
    loudest, head, tail, ahead = np.empty(len(loudness), np.int64), 0, 0, 0
    for i in range(len(begin)):
        ahead = max(ahead, begin[i])
        while ahead < end[i]:
            while tail > head and loudness[loudest[tail - 1]] <= loudness[ahead]:
                tail -= 1
            loudest[tail] = ahead
            tail, ahead = tail + 1, ahead + 1
        while loudest[head] < begin[i]:
            head += 1
        found[i] = loudness[loudest[head]]
    return found


@njit(cache=True, nogil=True)
def loudness_of(frames: np.ndarray) -> np.ndarray:
    """Return the mean of the log energies of each frame [T, D]: float32 [T]."""
    found = np.empty(len(frames), np.float32)
    for t in range(len(frames)):
        total = 0.0
        for x in frames[t]:
            total += x
        found[t] = total / frames.shape[1]
    return found


@njit(cache=True, nogil=True)
def _running_sums(frames: np.ndarray, origin: np.ndarray, power: int) -> np.ndarray:
    """Return sums of (x - origin) ** power, 1 or 2, over the frames before each."""
    sums = np.empty((len(frames) + 1, len(origin)))
    sums[0] = 0.0
    for t in range(len(frames)):
        for d in range(len(origin)):
            x = np.float64(frames[t, d]) - origin[d]
            sums[t + 1, d] = sums[t, d] + (x if power == 1 else x * x)
    return sums


@njit(cache=True, nogil=True)
def normalize_by_windows(
    frames: np.ndarray, begin: np.ndarray, statistics: np.ndarray, windows: Windows
) -> np.ndarray:
    """Do what `normalize_part` does of all frames of consecutive utterances.

    Args:
        frames: float32 [sum T, D].
        begin: int64 [U + 1], first row of each utterance.
        statistics: float64 [U, 2, D + 1].

    Returns:
        float32 [sum T, D].
    """
    out = np.empty(frames.shape, np.float32)
    for u in range(len(begin) - 1):
        mine = slice(begin[u], begin[u + 1])
        count = begin[u + 1] - begin[u]
        normalize_part(frames[mine], 0, count, statistics[u], windows, out[mine])
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def affine_of(stats: np.ndarray, is_scaled: bool, affine: np.ndarray) -> None:  # noqa: FBT001 - of a kernel
    """Write what normalizes frames as frames x scale - offset.

    Args:
        stats: float64 [2, D + 1], of at least one frame.
        is_scaled: whether variances become one too.
        affine: float32 [2, D]: scale and offset.

    Source: Kaldi `transform/cmvn.cc:ApplyCmvn`; a variance below 1e-20 counts as 1e-20.
    """
    dim = affine.shape[1]
    for d in range(dim):
        mean = stats[0, d] / stats[0, dim]
        scale = 1.0
        if is_scaled:
            variance = stats[1, d] / stats[0, dim] - mean * mean
            scale = 1.0 / np.sqrt(np.maximum(variance, 1e-20))
        affine[0, d], affine[1, d] = scale, mean * scale


@njit(cache=True, nogil=True)
def normalize_by_utterance(
    frames: np.ndarray,
    begin: np.ndarray,
    statistics: np.ndarray,
    is_scaled: bool,  # noqa: FBT001 - of a kernel
) -> np.ndarray:
    """Normalize frames by the statistics of their utterance, see `affine_of`.

    The arguments are those of `normalize_by_windows`.
    """
    out = np.empty(frames.shape, np.float32)
    affine = np.empty((2, frames.shape[1]), np.float32)
    for u in range(len(begin) - 1):
        affine_of(statistics[u], is_scaled, affine)
        for t in range(begin[u], begin[u + 1]):
            for d in range(frames.shape[1]):
                out[t, d] = frames[t, d] * affine[0, d] - affine[1, d]
    return out
