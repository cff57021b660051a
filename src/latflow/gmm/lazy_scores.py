"""Numba kernels: log-likelihoods of the mixtures that a search asks for, and no others.

A training graph is nearly a line, and the beam keeps a short piece of it alive, so that
a search meets a small part of the graph's pdfs in any one frame. Mixtures are therefore
evaluated when an arc first asks for them, for `WIDTH` frames at once: what is alive now
is most probably alive in the next frames too, and frames beside each other in memory
fill vector registers.

A *book* of scores is (log_likes float32[P, WIDTH], filled int64[P], powers float32[R,
WIDTH], scratch of the evaluation): the log-likelihoods of one tile of frames, by pdf;
the tile each row was filled for, -1 at first; 1, x and x^2 of the tile's frames as
columns, R = 1 + 2 D rounded up to a multiple of 4, zeros behind. It lives as
long as one search and does not grow with the utterance.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.gmm.kernels import log_sum_exp_tile

WIDTH = 32  # frames of a tile; 16 and 64 were measured to be as fast


def padded_factors(factors: np.ndarray) -> np.ndarray:
    """Factors of [1, x, x^2], float32[G, 1 + 2 D], with zeros behind: float32[G, R]."""
    return np.pad(factors, ((0, 0), (0, -factors.shape[1] % 4)))


@njit(cache=True, nogil=True)
def new_book(mixtures):
    """An empty book for mixtures (begin int64[P + 1], factors float32[G, R])."""
    begin, factors = mixtures
    num_pdfs, widest = len(begin) - 1, (begin[1:] - begin[:-1]).max()
    powers = np.zeros((factors.shape[1], WIDTH), np.float32)
    powers[0] = 1
    return (
        np.empty((num_pdfs, WIDTH), np.float32),
        np.full(num_pdfs, -1),
        powers,
        (
            np.empty((widest + 1, WIDTH), np.float32),
            np.empty((3, WIDTH), np.float32),
            np.empty(WIDTH, np.int32),
        ),
    )


@njit(cache=True, nogil=True)
def open_tile(book, x, first):
    """Lay out frames first ... first + WIDTH - 1 of x, or as many as there are.

    Args:
        book: changed; columns behind the last frame keep what they held.
        x: float32[T, D].
        first: the tile's first frame.
    """
    powers = book[2]
    dim = x.shape[1]
    for i in range(min(WIDTH, len(x) - first)):
        for d in range(dim):
            value = x[first + i, d]
            powers[1 + d, i] = value
            powers[1 + dim + d, i] = value * value


# Contraction alone of the fast-math rules: a product and its sum are rounded once.
@njit(cache=True, nogil=True, fastmath={"contract"})
def fill(book, tile, mixtures, pdf):
    """Evaluate one mixture on the open tile.

    Args:
        book: see above; its row of the pdf is written.
        tile: number of the open tile.
        mixtures: (begin int64[P + 1], factors float32[G, R], see `padded_factors`).
        pdf: the mixture.
    """
    begin, factors = mixtures
    log_likes, filled, powers, (scores, sums, bits) = book
    first, count = begin[pdf], begin[pdf + 1] - begin[pdf]
    # Two Gaussians (of an odd number the last one twice) and four rows at a time: an
    # entry of `powers` is loaded half as often, a sum a quarter as often.
    for k in range(0, count, 2):
        g, h = first + k, first + min(k + 1, count - 1)
        scores[k : k + 2] = 0
        for r in range(0, len(powers), 4):
            g0, g1, g2, g3 = _four(factors, g, r)
            h0, h1, h2, h3 = _four(factors, h, r)
            for i in range(WIDTH):
                p0, p1 = powers[r, i], powers[r + 1, i]
                p2, p3 = powers[r + 2, i], powers[r + 3, i]
                scores[k, i] += (g0 * p0 + g1 * p1) + (g2 * p2 + g3 * p3)
                scores[k + 1, i] += (h0 * p0 + h1 * p1) + (h2 * p2 + h3 * p3)
    top, total, log_total = sums[0], sums[1], sums[2]
    log_sum_exp_tile(scores[:count], top, total, log_total, bits, WIDTH)
    for i in range(WIDTH):
        log_likes[pdf, i] = top[i] + log_total[i]
    filled[pdf] = tile


@njit(cache=True, nogil=True, inline="always")
def _four(factors, g, r):
    """Four factors of a Gaussian."""
    return factors[g, r], factors[g, r + 1], factors[g, r + 2], factors[g, r + 3]
