"""Slow, obvious statistics and objective of MLLT, in plain loops."""

import math

import numpy as np
from reference.gmm_naive import log_gauss, log_sum_exp, scores
from scipy.optimize import minimize


def posteriors(gmms, x, pdf):
    """Posterior of each Gaussian of a pdf for one frame."""
    log_likes = scores(gmms, x, pdf)
    total = log_sum_exp(log_likes)
    return [math.exp(value - total) for value in log_likes]


def accumulate(gmms, frames, pdfs):
    """(G float64[D, D, D], count), a frame and a Gaussian at a time."""
    dim = gmms.dim
    scatters, count = np.zeros((dim, dim, dim)), 0.0
    for x, pdf in zip(frames.astype(np.float64), pdfs, strict=True):
        if pdf < 0:
            continue
        for k, posterior in enumerate(posteriors(gmms, x, pdf)):
            g = gmms.begin[pdf] + k
            offset = x - gmms.means[g]
            for i in range(dim):
                weight = posterior / gmms.variances[g, i]
                scatters[i] += weight * np.outer(offset, offset)
            count += posterior
    return scatters, count


def auxiliary(matrix, gmms, frames, pdfs):
    """What MLLT maximizes, straight from the densities of transformed frames."""
    total = 0.0
    _, log_det = np.linalg.slogdet(matrix)
    for x, pdf in zip(frames.astype(np.float64), pdfs, strict=True):
        if pdf < 0:
            continue
        for k, posterior in enumerate(posteriors(gmms, x, pdf)):
            g = gmms.begin[pdf] + k
            moved = log_gauss(matrix @ x, matrix @ gmms.means[g], gmms.variances[g])
            total += posterior * (moved + log_det)
    return total


def best_matrix(scatters, count):
    """Maximum of the objective by a general optimizer; (matrix, gain over identity)."""
    dim = len(scatters)

    def loss(flat):
        matrix = flat.reshape(dim, dim)
        quadratic = np.einsum("id,ide,ie->", matrix, scatters, matrix)
        return 0.5 * quadratic / count - np.linalg.slogdet(matrix)[1]

    def slope(flat):
        matrix = flat.reshape(dim, dim)
        pull = np.einsum("ide,ie->id", scatters, matrix) / count
        return (pull - np.linalg.inv(matrix).T).ravel()

    start = np.eye(dim).ravel()
    found = minimize(loss, start, jac=slope, method="BFGS", options={"gtol": 1e-9})
    return found.x.reshape(dim, dim), count * (loss(start) - found.fun)
