"""Slow, obvious statistics and objective of fMLLR, in plain loops."""

import math

import numpy as np
from reference.gmm_naive import log_gauss, log_sum_exp, scores
from scipy.optimize import minimize


def entries(gmms, frames, weights):
    """Yield (frame, Gaussian, weight * posterior); weights: a dict a frame, by pdf."""
    for x, of_pdf in zip(frames.astype(np.float64), weights, strict=True):
        for pdf, weight in of_pdf.items():
            log_likes = scores(gmms, x, pdf)
            total = log_sum_exp(log_likes)
            for k, value in enumerate(log_likes):
                yield x, gmms.begin[pdf] + k, weight * math.exp(value - total)


def accumulate(gmms, frames, weights, target=None):
    """(count, K float64[D, D + 1], G float64[D, D + 1, D + 1]), an entry at a time."""
    target = gmms if target is None else target
    dim = gmms.dim
    count, linear = 0.0, np.zeros((dim, dim + 1))
    scatters = np.zeros((dim, dim + 1, dim + 1))
    for x, g, posterior in entries(gmms, frames, weights):
        extended = np.append(x, 1.0)
        count += posterior
        for d in range(dim):
            precision = posterior / target.variances[g, d]
            linear[d] += precision * target.means[g, d] * extended
            scatters[d] += precision * np.outer(extended, extended)
    return count, linear, scatters


def log_likelihood(matrix, gmms, frames, weights, target=None):
    """What fMLLR maximizes, straight from the densities of transformed frames."""
    target = gmms if target is None else target
    dim = gmms.dim
    _, log_det = np.linalg.slogdet(matrix[:, :dim])
    total = 0.0
    for x, g, posterior in entries(gmms, frames, weights):
        moved = matrix[:, :dim] @ x + matrix[:, dim]
        density = log_gauss(moved, target.means[g], target.variances[g])
        total += posterior * (density + log_det)
    return total


def best_matrix(count, linear, scatters):
    """The maximum by a general optimizer; (matrix, gain over the identity)."""
    dim = len(linear)

    def loss(flat):
        matrix = flat.reshape(dim, dim + 1)
        quadratic = np.einsum("dc,dce,de->", matrix, scatters, matrix)
        _, log_det = np.linalg.slogdet(matrix[:, :dim])
        return (0.5 * quadratic - (matrix * linear).sum()) / count - log_det

    def slope(flat):
        matrix = flat.reshape(dim, dim + 1)
        out = (np.einsum("dce,de->dc", scatters, matrix) - linear) / count
        out[:, :dim] -= np.linalg.inv(matrix[:, :dim]).T
        return out.ravel()

    start = np.eye(dim, dim + 1).ravel()
    found = minimize(loss, start, jac=slope, method="BFGS", options={"gtol": 1e-9})
    return found.x.reshape(dim, dim + 1), count * (loss(start) - found.fun)


def auxiliary(matrix, statistics):
    """Objective that a transform [D, D + 1] reaches (Kaldi's FmllrAuxFuncDiagGmm)."""
    value = statistics.count * np.linalg.slogdet(matrix[:, :-1])[1]
    for row, linear, scatter in zip(
        matrix, statistics.linear, statistics.scatters(), strict=True
    ):
        value += row @ linear - 0.5 * row @ scatter @ row
    return float(value)
