"""The alignment model of a speaker-adapted system: its twin for unadapted features.

Each Gaussian of it is estimated from the frames that its counterpart in the adapted
model holds, but from their unadapted features. It makes the first pass over a new
speaker, and its Gaussian posteriors go with the adapted model's means.

Public: `estimate_alignment_model`.

Source: Kaldi `gmmbin/gmm-acc-stats-twofeats.cc`, `gmmbin/gmm-est.cc` with
`--remove-low-count-gaussians=false`.
"""

from __future__ import annotations

import copy

import numpy as np

from latflow.gmm.estep import portions, sort_by_pdf
from latflow.gmm.fmllr_kernels import accumulate_pairs
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.gmm.schedule import Training
from latflow.gmm.source import FrameSource
from latflow.gmm.update import UpdateOptions, update_gmms


def estimate_alignment_model(
    model: AcousticModel, training: Training, plain: FrameSource
) -> AcousticModel:
    """Estimate the alignment model.

    Args:
        model: the adapted model.
        training: adapted features with their alignment.
        plain: unadapted features of the same utterances.
    """
    transitions, gmms = model.transitions, model.gmms
    counts = np.zeros(transitions.num_transition_ids + 1)
    moments = np.zeros((gmms.num_gaussians, 1 + 2 * gmms.dim))
    both = zip(training.aligned_chunks(), training.aligned_chunks(plain), strict=True)
    for (_, adapted, ids), (_, unadapted, _) in both:
        counts += np.bincount(ids, minlength=len(counts))
        order, begin = sort_by_pdf(transitions.pdf[ids], gmms.num_pdfs)

        def do(pdfs: np.ndarray, x=adapted, y=unadapted, order=order, begin=begin):
            accumulate_pairs(
                x, y, order, begin, pdfs, gmms.begin, gmms.factors, moments
            )

        for _ in training.pool.map(do, portions(np.diff(begin) * np.diff(gmms.begin))):
            pass
    counts[0] = 0
    new = copy.copy(transitions)
    new.update(counts)
    return AcousticModel(new, update_all(gmms, moments))


def update_all(gmms: DiagGmms, moments: np.ndarray) -> DiagGmms:
    """Estimate mixtures without removing a Gaussian.

    One with too little data keeps its mean and variance, and has a least weight.

    Args:
        gmms: the mixtures.
        moments: float64[G, 1 + 2 D], sums of posterior * [1, x, x^2].
    """
    options = UpdateOptions()
    sizes, occupancy = np.diff(gmms.begin), moments[:, 0]
    totals = np.repeat(np.add.reduceat(occupancy, gmms.begin[:-1]), sizes)
    share = np.where(
        totals > 0, occupancy / np.maximum(totals, 1e-300), 1 / np.repeat(sizes, sizes)
    )
    # As mixtures of one, which are never removed.
    single = DiagGmms.from_natural(
        np.arange(gmms.num_gaussians + 1),
        np.ones(gmms.num_gaussians),
        gmms.means_invvars,
        gmms.inv_vars,
    )
    is_rare = share <= options.min_weight
    found, _ = update_gmms(single, np.where(is_rare[:, None], 0.0, moments), options)
    weights = np.maximum(share, options.min_weight)
    weights /= np.repeat(np.add.reduceat(weights, gmms.begin[:-1]), sizes)
    return DiagGmms.from_natural(
        gmms.begin, weights, found.means_invvars, found.inv_vars
    )
