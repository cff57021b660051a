"""Maximum-a-posteriori estimation of the means of diagonal Gaussian mixtures.

With a Gaussian prior of the mean around that of another model, of the Gaussian's own
variance over `tau`, the estimate of a mean is

    m' = (sum_t gamma_t x_t + tau m) / (sum_t gamma_t + tau)

so that a Gaussian that few frames go to stays near the other model's, and one that
many go to becomes the maximum-likelihood estimate.

Source: J.-L. Gauvain and C.-H. Lee, Maximum a posteriori estimation for multivariate
Gaussian mixture observations of Markov chains, IEEE Transactions on Speech and Audio
Processing 2 (2), 1994; Kaldi `gmm/mle-diag-gmm.cc` (`MapDiagGmmUpdate`, of the means).
"""

from __future__ import annotations

import numpy as np

from latflow.gmm.model import DiagGmms


def map_means(prior: DiagGmms, moments: np.ndarray, tau: float) -> DiagGmms:
    """Return mixtures with means adapted to statistics; weights and variances stay.

    Args:
        prior: mixtures whose means the prior has.
        moments: float64[G, 1 + 2 D], sums of posterior * [1, x, x^2] over frames, of
            the same Gaussians.
        tau: frames that the prior counts for, > 0.
    """
    occupancy = moments[:, :1]
    sums = moments[:, 1 : 1 + prior.dim]
    means = (sums + tau * prior.means) / (occupancy + tau)
    inv_vars = prior.inv_vars.astype(np.float64)
    return DiagGmms.from_natural(prior.begin, prior.weights, means * inv_vars, inv_vars)
