"""The likeliest beginnings of parts, by trying all of them."""

from itertools import pairwise, product

import numpy as np


def log_likelihood(x, mean, factor, constant):
    """Of a frame, less what all Gaussians have."""
    return constant - 0.5 * np.square((x - mean) @ factor).sum()


def best_beginnings(frames, classes, begin, reach, mean, factor, constant):
    """Return (beginnings, their log-likelihood); see `latflow.align.boundaries`."""
    num_frames = len(frames)
    choices = [range(b - reach, b + reach + 1) for b in begin[1:].tolist()]
    best, found = -np.inf, None
    for rest in product(*choices):
        bounds = [0, *rest, num_frames]
        if any(b <= a for a, b in pairwise(bounds)):
            continue
        value = sum(
            log_likelihood(frames[t], mean[c], factor[c], constant[c])
            for c, (first, last) in zip(classes, pairwise(bounds), strict=True)
            for t in range(first, last)
        )
        if value > best:
            best, found = value, bounds[:-1]
    return found, best
