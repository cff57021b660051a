"""Numba kernels of diagonal Gaussian mixtures: log-sum-exp and the E-step.

Both work on tiles of `TILE` frames that lie beside each other in memory, so that every
inner loop is element by element over frames and compiles to vector instructions without
reordering any sum. `exp` and `log` are written out as polynomials for the same reason:
a call into the mathematics library cannot be vectorised.

All kernels release the interpreter's lock: several threads may run them at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

TILE = 64  # frames worked on together

F = np.float32
_LOG2E = F(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = F(0.693359375), F(-2.12194440e-4)
_EXP_LOW = F(-87.0)  # exp of less is below the smallest normal float32
_ONE, _HALF = F(1.0), F(0.5)
# Minimax polynomials of Cephes' expf and logf (S. Moshier, Methods and Programs for
# Mathematical Functions, 1989): relative error about 1e-7.
_E0, _E1, _E2 = F(1.9875691500e-4), F(1.3981999507e-3), F(8.3334519073e-3)
_E3, _E4, _E5 = F(4.1665795894e-2), F(1.6666665459e-1), F(5.0000001201e-1)
_L0, _L1, _L2 = F(7.0376836292e-2), F(-1.1514610310e-1), F(1.1676998740e-1)
_L3, _L4, _L5 = F(-1.2420140846e-1), F(1.4249322787e-1), F(-1.6668057665e-1)
_L6, _L7, _L8 = F(2.0000714765e-1), F(-2.4999993993e-1), F(3.3333331174e-1)
_SQRT_HALF = F(0.70710678118654752)


@njit(cache=True, nogil=True, inline="always")
def _exp_into(x, shift, out, bits, n):
    """out[i] = exp(x[i] - shift[i]) for i < n, 0 where that is below -87.

    Args:
        x: float32[n].
        shift: float32[n], at least x.
        out: float32[n], may be x itself.
        bits: int32[n], scratch.
        n: how many.
    """
    scale = bits.view(np.float32)
    for i in range(n):
        v = x[i] - shift[i]
        v = max(v, _EXP_LOW)
        whole = np.floor(v * _LOG2E + _HALF)
        r = v - whole * _LN2_HIGH - whole * _LN2_LOW
        p = _E0
        p = p * r + _E1
        p = p * r + _E2
        p = p * r + _E3
        p = p * r + _E4
        p = p * r + _E5
        is_zero = v <= _EXP_LOW
        out[i] = F(0.0) if is_zero else p * r * r + r + _ONE
        bits[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    for i in range(n):
        out[i] *= scale[i]


@njit(cache=True, nogil=True, inline="always")
def _log_into(x, out, bits, n):
    """out[i] = log(x[i]) for i < n; x must be normal positive numbers, float32[n].

    Args:
        x: float32[n].
        out: float32[n], not x.
        bits: int32[n], scratch.
        n: how many.
    """
    mantissa = bits.view(np.float32)
    source = x.view(np.int32)
    for i in range(n):
        bits[i] = (source[i] & np.int32(0x007FFFFF)) | np.int32(0x3F000000)
        out[i] = F((source[i] >> np.int32(23)) - np.int32(126))
    for i in range(n):
        m = mantissa[i]  # in [0.5, 1)
        is_small = m < _SQRT_HALF
        e = out[i] - _ONE if is_small else out[i]
        v = m + m - _ONE if is_small else m - _ONE
        z = v * v
        p = _L0
        p = p * v + _L1
        p = p * v + _L2
        p = p * v + _L3
        p = p * v + _L4
        p = p * v + _L5
        p = p * v + _L6
        p = p * v + _L7
        p = p * v + _L8
        p = p * v * z + e * _LN2_LOW - _HALF * z
        out[i] = v + p + e * _LN2_HIGH


@njit(cache=True, nogil=True, inline="always")
def log_sum_exp_tile(scores, top, total, log_total, bits, n):
    """Sum a mixture's Gaussians: scores[k, i] become exp(scores[k, i] - top[i]).

    Args:
        scores: float32[K, TILE], log(weight * density); overwritten.
        top: float32[TILE], the largest score of each frame, written.
        total: float32[TILE], sum of the new scores of each frame, written.
        log_total: float32[TILE], its logarithm, written.
        bits: int32[TILE], scratch.
        n: number of frames.
    """
    for i in range(n):
        top[i] = scores[0, i]
        total[i] = F(0.0)
    for k in range(1, len(scores)):
        row = scores[k]
        for i in range(n):
            top[i] = max(top[i], row[i])
    for k in range(len(scores)):
        row = scores[k]
        _exp_into(row, top, row, bits, n)
        for i in range(n):
            total[i] += row[i]
    _log_into(total, log_total, bits, n)


@njit(cache=True, nogil=True)
def log_sum_exp(scores, begin, out):
    """Log-likelihood of each mixture from those of its weighted Gaussians.

    Args:
        scores: float32[G, T], log(weight * density).
        begin: int64[P + 1], Gaussians begin[p]..begin[p+1]-1 belong to mixture p.
        out: float32[T, P], written.
    """
    num_frames = scores.shape[1]
    scratch = np.empty(((begin[1:] - begin[:-1]).max(), TILE), np.float32)
    top = np.empty(TILE, np.float32)
    total = np.empty(TILE, np.float32)
    log_total = np.empty(TILE, np.float32)
    bits = np.empty(TILE, np.int32)
    for first in range(0, num_frames, TILE):
        n = min(TILE, num_frames - first)
        for p in range(len(begin) - 1):
            tile = scratch[: begin[p + 1] - begin[p]]
            for k in range(len(tile)):
                row = scores[begin[p] + k]
                for i in range(n):
                    tile[k, i] = row[first + i]
            log_sum_exp_tile(tile, top, total, log_total, bits, n)
            for i in range(n):
                out[first + i, p] = top[i] + log_total[i]


@njit(cache=True, nogil=True, inline="always")
def _score_tile(x, rows, factors, tile, scores):
    """Log-likelihoods of a mixture's weighted Gaussians on up to TILE frames.

    Args:
        x: float32[T, D], feature frames.
        rows: int64[n], the frames to do.
        factors: float32[K, 1 + 2 D], the mixture's factors of [1, x, x^2].
        tile: float32[2 D, TILE], scratch: the frames, transposed, and their squares.
        scores: float32[K, TILE], written.
    """
    dim, n = x.shape[1], len(rows)
    for i in range(n):
        frame = x[rows[i]]
        for d in range(dim):
            tile[d, i] = frame[d]
            tile[dim + d, i] = frame[d] * frame[d]
    for k in range(len(scores)):
        score = scores[k]
        for i in range(n):
            score[i] = factors[k, 0]
        for d in range(2 * dim):
            factor = factors[k, 1 + d]
            for i in range(n):
                score[i] += factor * tile[d, i]


@njit(cache=True, nogil=True, inline="always")
def _add_tile(frame, posteriors, i, total, both, moments):
    """Add posterior * [1, x, x^2] of one frame to each Gaussian's moments.

    Args:
        frame: float32[D].
        posteriors: float32[K, TILE], times `total`.
        i: the frame's column.
        total: float32, what the posteriors must be divided by.
        both: float64[1 + 2 D], scratch; its first entry is 1.
        moments: float64[K, 1 + 2 D], added to.
    """
    dim = len(frame)
    for d in range(dim):
        value = np.float64(frame[d])
        both[1 + d] = value
        both[1 + dim + d] = value * value
    for k in range(len(moments)):
        posterior = np.float64(posteriors[k, i]) / np.float64(total)
        moment = moments[k]
        for d in range(len(both)):
            moment[d] += posterior * both[d]


@njit(cache=True, nogil=True)
def accumulate(x, order, frame_begin, pdfs, begin, factors, moments):
    """E-step of some mixtures over the frames that are aligned to them.

    Args:
        x: float32[T, D], feature frames.
        order: int64[T], frames sorted by pdf.
        frame_begin: int64[P + 1], frames of pdf p are order[frame_begin[p]:...[p+1]].
        pdfs: int64[M], the mixtures to do; others stay untouched.
        begin: int64[P + 1], Gaussians of each mixture.
        factors: float32[G, 1 + 2 D], factors of [1, x, x^2] in the log-likelihood.
        moments: float64[G, 1 + 2 D], sum of posterior * [1, x, x^2], added to.

    Returns:
        float64[M]: total log-likelihood of each mixture's frames.
    """
    dim = x.shape[1]
    widest = (begin[1:] - begin[:-1]).max()
    tile = np.empty((2 * dim, TILE), np.float32)
    scratch = np.empty((widest, TILE), np.float32)
    top = np.empty(TILE, np.float32)
    total = np.empty(TILE, np.float32)
    log_total = np.empty(TILE, np.float32)
    bits = np.empty(TILE, np.int32)
    both = np.ones(1 + 2 * dim, np.float64)
    log_likes = np.zeros(len(pdfs), np.float64)
    for m in range(len(pdfs)):
        p = pdfs[m]
        mine = slice(begin[p], begin[p + 1])
        scores = scratch[: begin[p + 1] - begin[p]]
        for first in range(frame_begin[p], frame_begin[p + 1], TILE):
            rows = order[first : min(first + TILE, frame_begin[p + 1])]
            _score_tile(x, rows, factors[mine], tile, scores)
            log_sum_exp_tile(scores, top, total, log_total, bits, len(rows))
            for i in range(len(rows)):
                log_likes[m] += np.float64(top[i]) + np.float64(log_total[i])
                _add_tile(x[rows[i]], scores, i, total[i], both, moments[mine])
    return log_likes
