"""Slow, obvious versions of the feature kernels, written frame by frame."""

import numpy as np


def windows(signal, length, shift, *, snip_edges):
    """Windows of a signal as a list of arrays, reflecting step by step at the ends."""
    n = len(signal)
    if snip_edges:
        starts = range(0, n - length + 1, shift)
    else:
        num_frames = (n + shift // 2) // shift
        starts = [t * shift + shift // 2 - length // 2 for t in range(num_frames)]
    out = []
    for start in starts:
        window = np.empty(length, signal.dtype)
        for i in range(length):
            s = start + i
            while s < 0 or s >= n:
                s = -s - 1 if s < 0 else 2 * n - 1 - s
            window[i] = signal[s]
        out.append(window)
    return out


def delta_filters(order, window):
    """Kaldi's recursion for the taps of each derivative."""
    filters = [np.ones(1)]
    for _ in range(order):
        previous = filters[-1]
        reach = len(previous) // 2
        taps = np.zeros(len(previous) + 2 * window)
        norm = 0.0
        for j in range(-window, window + 1):
            norm += j * j
            for k in range(-reach, reach + 1):
                taps[j + k + reach + window] += j * previous[k + reach]
        filters.append(taps / norm)
    return filters


def deltas(frames, order, window):
    """Features and derivatives of one utterance, float64."""
    T, D = frames.shape
    out = np.zeros((T, D * (order + 1)))
    for k, taps in enumerate(delta_filters(order, window)):
        reach = len(taps) // 2
        for t in range(T):
            for j, tap in enumerate(taps):
                row = frames[min(max(t + j - reach, 0), T - 1)].astype(np.float64)
                out[t, k * D : (k + 1) * D] += tap * row
    return out


def splice(frames, left, right):
    """Neighbours beside each other."""
    T = len(frames)
    rows = [
        np.concatenate(
            [frames[min(max(t + j, 0), T - 1)] for j in range(-left, right + 1)]
        )
        for t in range(T)
    ]
    return np.array(rows)


def online_cmvn(
    frames, mean, variance, *, window, global_frames, norm_vars, before=None
):
    """Each frame normalized by those up to it, with so many of the training set's.

    The speaker's frames `before` fill up a window first.
    """
    out = np.empty(frames.shape)
    for t in range(len(frames)):
        part = frames[max(0, t + 1 - window) : t + 1].astype(np.float64)
        pools = [(len(part), part.mean(axis=0), part.var(axis=0))]
        room = window - len(part)
        if before is not None and len(before):
            share, exact = min(room, len(before)), before.astype(np.float64)
            pools.append((share, exact.mean(axis=0), exact.var(axis=0)))
            room -= share
        pools.append((min(global_frames, room), mean, variance))
        count = sum(weight for weight, _, _ in pools)
        centre = sum(weight * middle for weight, middle, _ in pools) / count
        out[t] = frames[t] - centre
        if norm_vars:
            spread = sum(
                weight * (spread + (middle - centre) ** 2)
                for weight, middle, spread in pools
            )
            out[t] /= np.sqrt(spread / count)
    return out


def sliding_cmvn(frames, *, window, min_window, center, norm_vars):
    """Each frame normalized by its window, statistics computed anew every time."""
    T = len(frames)
    frames = frames.astype(np.float64)
    out = np.empty_like(frames)
    for t in range(T):
        if center:
            begin = t - window // 2
            end = begin + window
        else:
            begin, end = t - window, t + 1
        if begin < 0:
            begin, end = 0, end - begin
        if not center and end > t:
            end = max(t + 1, min_window)
        if end > T:
            begin, end = max(0, begin - (end - T)), T
        part = frames[begin:end]
        out[t] = frames[t] - part.mean(axis=0)
        if norm_vars:
            variance = np.maximum(part.var(axis=0), 1e-10)
            out[t] = 0.0 if len(part) == 1 else out[t] / np.sqrt(variance)
    return out
