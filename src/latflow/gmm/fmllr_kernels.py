"""Numba kernels of speaker adaptation: posteriors of Gaussians, and what is summed.

Frames are few per speaker and pdf, so posteriors are made a frame and a mixture at a
time. Here (and only here) sums of products may be reordered, `fastmath={"reassoc"}`, so
that a frame's product with a Gaussian's factors uses vector instructions; it is a
float32 sum of some eighty terms, as exact in any order.

All kernels release the interpreter's lock: several threads may run them at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, inline="always")
def _component_posteriors(frame, powers, factors, first, last, posteriors):
    """Posteriors of Gaussians first ... last - 1 of one mixture for one frame.

    Args:
        frame: float32[D].
        powers: float32[1 + 2 D], scratch: [1, x, x^2].
        factors: float32[G, 1 + 2 D], factors of [1, x, x^2] in the log-likelihood.
        first: first Gaussian of the mixture.
        last: one past its last.
        posteriors: float64[at least last - first], written.
    """
    dim = len(frame)
    powers[0] = np.float32(1.0)
    for d in range(dim):
        powers[1 + d] = frame[d]
        powers[1 + dim + d] = frame[d] * frame[d]
    top = -np.inf
    for g in range(first, last):
        score = np.float32(0.0)
        for d in range(len(powers)):
            score += factors[g, d] * powers[d]
        posteriors[g - first] = score
        top = max(top, posteriors[g - first])
    total = 0.0
    for k in range(last - first):
        posteriors[k] = np.exp(posteriors[k] - top)
        total += posteriors[k]
    for k in range(last - first):
        posteriors[k] /= total


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def mean_parameters(
    frames, frame_begin, pdfs, weights, begin, factors, means_invvars, inv_vars
):
    """Average the parameters of the Gaussians that hold each frame.

    Args:
        frames: float32[T, D].
        frame_begin: int64[T + 1], entries of each frame.
        pdfs: int32[N], pdf of each entry.
        weights: float64[N], weight of each entry.
        begin: int64[P + 1], Gaussians of each mixture.
        factors: float32[G, 1 + 2 D], of the model that the posteriors come from.
        means_invvars: float32[G, D], of the model that is adapted to.
        inv_vars: float32[G, D], likewise.

    Returns:
        float64[2, T, D]: the sums over entries and Gaussians of weight * posterior *
        (mean / variance), and of weight * posterior / variance.
    """
    dim = frames.shape[1]
    out = np.zeros((2, len(frames), dim))
    powers = np.empty(1 + 2 * dim, np.float32)
    posteriors = np.empty((begin[1:] - begin[:-1]).max(), np.float64)
    for t in range(len(frames)):
        for entry in range(frame_begin[t], frame_begin[t + 1]):
            first, last = begin[pdfs[entry]], begin[pdfs[entry] + 1]
            _component_posteriors(frames[t], powers, factors, first, last, posteriors)
            for g in range(first, last):
                share = weights[entry] * posteriors[g - first]
                for d in range(dim):
                    out[0, t, d] += share * means_invvars[g, d]
                    out[1, t, d] += share * inv_vars[g, d]
    return out


@njit(cache=True, nogil=True)
def extended_products(frames, extended, products):
    """Extend frames by a 1, and multiply all pairs of their numbers.

    Args:
        frames: float32[T, D].
        extended: float64[T, D + 1], written: frames with a last column of 1.
        products: float64[T, (D + 1) (D + 2) / 2], written: the lower triangle of the
            outer product of each extended frame with itself, row by row.
    """
    dim = frames.shape[1]
    for t in range(len(frames)):
        row = extended[t]
        for d in range(dim):
            row[d] = frames[t, d]
        row[dim] = 1.0
        place = 0
        for i in range(dim + 1):
            for j in range(i + 1):
                products[t, place + j] = row[i] * row[j]
            place += i + 1


@njit(cache=True, nogil=True)
def sweep_rows(inverses, offsets, count, inverse, matrix):
    """Optimise each row of a transform in turn, the others being as they are.

    With c the column of the inverse of A that belongs to row i (its cofactors over the
    determinant), the best row is alpha c G^-1 + k G^-1, where alpha solves
    e1 alpha^2 + e2 alpha - count = 0, e1 = c G^-1 c', e2 = c G^-1 k'; of the two
    solutions the one with the higher objective is taken.

    Args:
        inverses: float64[D, D + 1, D + 1], G_i^-1 for each row i.
        offsets: float64[D, D + 1], k_i G_i^-1.
        count: frames, weighted.
        inverse: float64[D, D], the inverse of the square part A of the transform;
            updated for each row that changes.
        matrix: float64[D, D + 1], the transform; updated.
    """
    dim = len(matrix)
    direction = np.empty(dim + 1, np.float64)
    cofactors = np.empty(dim, np.float64)
    change = np.empty(dim, np.float64)
    for i in range(dim):
        cofactors[:] = inverse[:, i]
        direction[:] = 0.0
        for j in range(dim):
            for c in range(dim + 1):
                direction[c] += cofactors[j] * inverses[i, j, c]
        e1, e2 = 0.0, 0.0
        for c in range(dim):
            e1 += cofactors[c] * direction[c]
            e2 += cofactors[c] * offsets[i, c]
        alpha = _best_step(e1, e2, count)
        # Sherman and Morrison: the inverse of A after its row i has changed.
        change[:] = 0.0
        for c in range(dim):
            step = alpha * direction[c] + offsets[i, c] - matrix[i, c]
            for j in range(dim):
                change[j] += step * inverse[c, j]
        scale = 1.0 / (1.0 + change[i])
        for r in range(dim):
            for j in range(dim):
                inverse[r, j] -= scale * cofactors[r] * change[j]
        for c in range(dim + 1):
            matrix[i, c] = alpha * direction[c] + offsets[i, c]


@njit(cache=True, nogil=True)
def _best_step(e1, e2, count):
    """The better root of e1 alpha^2 + e2 alpha - count; see `sweep_rows`.

    Args:
        e1: quadratic coefficient, above 0.
        e2: linear coefficient.
        count: frames.
    """
    root = np.sqrt(e2 * e2 + 4.0 * e1 * count)
    up, down = (root - e2) / (2.0 * e1), (-root - e2) / (2.0 * e1)
    value_up = count * np.log(abs(up * e1 + e2)) - 0.5 * up * up * e1
    value_down = count * np.log(abs(down * e1 + e2)) - 0.5 * down * down * e1
    return up if value_up > value_down else down


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def accumulate_pairs(x, y, order, frame_begin, pdfs, begin, factors, moments):
    """E-step with posteriors of one kind of features and moments of another.

    Args:
        x: float32[T, D], features that the posteriors come from.
        y: float32[T, D], features that are summed.
        order: int64[T], frames sorted by pdf.
        frame_begin: int64[P + 1], frames of pdf p are order[frame_begin[p]:...[p+1]].
        pdfs: int64[M], the mixtures to do; others stay untouched.
        begin: int64[P + 1], Gaussians of each mixture.
        factors: float32[G, 1 + 2 D], factors of [1, x, x^2] in the log-likelihood.
        moments: float64[G, 1 + 2 D], sum of posterior * [1, y, y^2], added to.
    """
    dim = x.shape[1]
    powers = np.empty(1 + 2 * dim, np.float32)
    posteriors = np.empty((begin[1:] - begin[:-1]).max(), np.float64)
    for p in pdfs:
        first, last = begin[p], begin[p + 1]
        for place in range(frame_begin[p], frame_begin[p + 1]):
            t = order[place]
            _component_posteriors(x[t], powers, factors, first, last, posteriors)
            for g in range(first, last):
                posterior = posteriors[g - first]
                moments[g, 0] += posterior
                for d in range(dim):
                    value = np.float64(y[t, d])
                    moments[g, 1 + d] += posterior * value
                    moments[g, 1 + dim + d] += posterior * value * value
