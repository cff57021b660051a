"""Numba kernels of diagonal Gaussian mixtures: scores, E-step, adaptation.

Scores and E-step work on tiles of frames that lie beside each other in memory, so that
every inner loop is element by element over frames and compiles to vector instructions
without reordering any sum. `exp` and `log` are written out as polynomials for the same
reason: a call into the mathematics library cannot be vectorized.

In speaker adaptation frames are few per speaker and pdf, so posteriors are made a frame
and a mixture at a time. There (and only there) sums of products may be reordered,
`fastmath={"reassoc"}`, so that a frame's product with a Gaussian's factors uses vector
instructions; it is a float32 sum of some eighty terms, as exact in any order.

All kernels release the interpreter's lock: several threads may run them at once.
"""

from __future__ import annotations

import numpy as np

from latflow.jit import njit

TILE = 64  # frames worked on together
WIDE_TILE = 128  # the same, where all are there and all mixtures are wanted

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
    """Set out[i] = exp(x[i] - shift[i]) for i < n, 0 where that is below -87.

    Args:
        x: float32[n].
        shift: float32[n], at least x.
        out: float32[n], may be x itself.
        bits: int32[n], scratch.
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
    """Set out[i] = log(x[i]) for i < n; x must be normal positive numbers.

    Args:
        x: float32[n].
        out: float32[n], not x.
        bits: int32[n], scratch.
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
def new_tile(num_rows, width, widest):
    """Return an empty tile of frames, as `open_tile` and `score_mixture` take it.

    Args:
        num_rows: R, 1 + 2 D rounded up to a multiple of 4.
        width: greatest number of frames, W.
        widest: most Gaussians of a mixture.

    Returns:
        (powers float32[R, W], columns [1, x, x^2, 0]; scores float32[widest + 1, W],
        sums float32[3, W] and bits int32[W], scratch).
    """
    powers = np.zeros((num_rows, width), np.float32)
    powers[0] = 1
    return (
        powers,
        np.empty((widest + 1, width), np.float32),
        np.empty((3, width), np.float32),
        np.empty(width, np.int32),
    )


@njit(cache=True, nogil=True)
def open_tile(tile, x, first, n):
    """Lay out frames first ... first + n - 1 of x float32[T, D] in a tile."""
    powers = tile[0]
    dim = x.shape[1]
    for i in range(n):
        for d in range(dim):
            value = x[first + i, d]
            powers[1 + d, i] = value
            powers[1 + dim + d, i] = value * value


# Contraction alone of the fast-math rules: a product and its sum are rounded once.
@njit(cache=True, nogil=True, fastmath={"contract"})
def score_mixture(tile, mixtures, pdf, n, out):
    """Evaluate one mixture on the first frames of a tile.

    Args:
        tile: see `new_tile`; its scratch is changed.
        mixtures: (begin int64[P + 1], factors float32[G, R], see
            `DiagGmms.padded_factors`).
        pdf: number of the mixture.
        n: how many frames.
        out: float32[n], log-likelihoods, written.

    The tile's `scores` are the Gaussians' posteriors then, times `sums[1]`.
    """
    begin, factors = mixtures
    powers, scores, sums, bits = tile
    first, count = begin[pdf], begin[pdf + 1] - begin[pdf]
    # Two Gaussians (of an odd number the last one twice) and four rows at a time: an
    # entry of `powers` is loaded half as often, a sum a quarter as often.
    for k in range(0, count, 2):
        g, h = first + k, first + min(k + 1, count - 1)
        one, two = scores[k], scores[k + 1]
        for i in range(n):
            one[i] = F(0.0)
            two[i] = F(0.0)
        for r in range(0, len(powers), 4):
            g0, g1, g2, g3 = _four(factors, g, r)
            h0, h1, h2, h3 = _four(factors, h, r)
            for i in range(n):
                p0, p1 = powers[r, i], powers[r + 1, i]
                p2, p3 = powers[r + 2, i], powers[r + 3, i]
                one[i] += (g0 * p0 + g1 * p1) + (g2 * p2 + g3 * p3)
                two[i] += (h0 * p0 + h1 * p1) + (h2 * p2 + h3 * p3)
    top, total, log_total = sums[0], sums[1], sums[2]
    log_sum_exp_tile(scores[:count], top, total, log_total, bits, n)
    for i in range(n):
        out[i] = top[i] + log_total[i]


@njit(cache=True, nogil=True, inline="always")
def _four(factors, g, r):
    """Return four factors of a Gaussian."""
    return factors[g, r], factors[g, r + 1], factors[g, r + 2], factors[g, r + 3]


@njit(cache=True, nogil=True)
def log_likelihoods(x, mixtures, pdfs, out):
    """Evaluate mixtures on all frames.

    Args:
        x: float32[T, D].
        mixtures: as `score_mixture` takes them.
        pdfs: int64[N], numbers of the mixtures.
        out: float32[T, N], written.
    """
    begin, factors = mixtures
    widest = (begin[1:] - begin[:-1]).max()
    tile = new_tile(factors.shape[1], WIDE_TILE, widest)
    row = np.empty(WIDE_TILE, np.float32)
    for first in range(0, len(x), WIDE_TILE):
        n = min(WIDE_TILE, len(x) - first)
        open_tile(tile, x, first, n)
        for j in range(len(pdfs)):
            score_mixture(tile, mixtures, pdfs[j], n, row)
            for i in range(n):
                out[first + i, j] = row[i]


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
def accumulate(x, order, frame_begin, pdfs, mixtures, moments):
    """Do the E-step of some mixtures over the frames that are aligned to them.

    Args:
        x: float32[T, D], feature frames.
        order: int64[T], frames sorted by pdf.
        frame_begin: int64[P + 1], frames of pdf p are order[frame_begin[p]:...[p+1]].
        pdfs: int64[M], the mixtures to do; others stay untouched.
        mixtures: as `score_mixture` takes them.
        moments: float64[G, 1 + 2 D], sum of posterior * [1, x, x^2], added to.

    Returns:
        float64[M]: total log-likelihood of each mixture's frames.
    """
    begin, factors = mixtures
    widest = (begin[1:] - begin[:-1]).max()
    tile = new_tile(factors.shape[1], TILE, widest)
    together = np.empty((TILE, x.shape[1]), np.float32)
    row = np.empty(TILE, np.float32)
    both = np.ones(1 + 2 * x.shape[1], np.float64)
    log_likes = np.zeros(len(pdfs), np.float64)
    for m in range(len(pdfs)):
        p = pdfs[m]
        posteriors = tile[1][: begin[p + 1] - begin[p]]
        mine = moments[begin[p] : begin[p + 1]]
        for first in range(frame_begin[p], frame_begin[p + 1], TILE):
            n = min(TILE, frame_begin[p + 1] - first)
            for i in range(n):
                together[i] = x[order[first + i]]
            open_tile(tile, together, 0, n)
            score_mixture(tile, mixtures, p, n, row)
            for i in range(n):
                log_likes[m] += np.float64(row[i])
                _add_tile(together[i], posteriors, i, tile[2][1, i], both, mine)
    return log_likes


# -- adaptation ------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _component_posteriors(frame, powers, factors, first, last, posteriors):
    """Compute posteriors of Gaussians first ... last - 1 of one mixture for one frame.

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
    """Optimize each row of a transform in turn, the others being as they are.

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
    """Return the better root of e1 alpha^2 + e2 alpha - count; see `sweep_rows`.

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
    """Do the E-step: posteriors of one kind of features, moments of another.

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
