"""Adapted means: maxima of the posterior, between the old ones and the new speech's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import gmm_naive

from latflow.gmm.model import DiagGmms
from latflow.gmm.update import map_means

seeds = st.integers(0, 2**32 - 1)
taus = st.floats(0.5, 200.0)


def task(seed, num_frames=40, dim=3):
    """Mixtures, frames with the pdf of each, and statistics of them."""
    rng = np.random.default_rng(seed)
    begin = np.array([0, 2, 3, 6])
    gmms = DiagGmms.from_moments(
        begin,
        np.array([0.3, 0.7, 1.0, 0.2, 0.5, 0.3]),
        rng.normal(0, 2, (6, dim)),
        rng.uniform(0.3, 2.0, (6, dim)),
    )
    pdfs = rng.integers(0, 2, num_frames)  # the third one is never seen
    frames = rng.normal(0.7, 2, (num_frames, dim))
    return gmms, frames, pdfs, gmm_naive.accumulate(gmms, frames, pdfs)[0]


@given(seed=seeds, tau=taus)
def test_means_are_those_of_the_definition(seed, tau):
    gmms, frames, pdfs, moments = task(seed)
    found = map_means(gmms, moments, tau)
    for pdf in range(3):
        mine = frames[pdfs == pdf]
        likes = [gmm_naive.scores(gmms, x, pdf) for x in mine]
        shares = np.array([np.exp(s - np.logaddexp.reduce(s)) for s in likes])
        for k, g in enumerate(range(gmms.begin[pdf], gmms.begin[pdf + 1])):
            posteriors = shares[:, k] if len(mine) else []
            expected = gmm_naive.map_mean(gmms.means[g], mine, posteriors, tau)
            np.testing.assert_allclose(found.means[g], expected, rtol=1e-4, atol=1e-4)
    for name in ("begin", "weights", "inv_vars"):
        np.testing.assert_array_equal(getattr(found, name), getattr(gmms, name))


def test_one_gaussian_by_hand():
    one = DiagGmms.from_moments(
        np.array([0, 1]), np.ones(1), np.array([[2.0]]), np.array([[0.5]])
    )
    moments = np.array([[3.0, 12.0, 99.0]])  # three frames of mean 4
    assert map_means(one, moments, 1.0).means[0, 0] == pytest.approx(3.5)


@given(seed=seeds)
def test_bounds_are_the_old_means_and_those_of_the_speech(seed):
    gmms, _, _, moments = task(seed)
    stay, go = map_means(gmms, moments, 1e9), map_means(gmms, moments, 1e-9)
    np.testing.assert_allclose(stay.means, gmms.means, atol=1e-4)
    seen = moments[:, 0] > 1e-3
    speech = moments[seen, 1:4] / moments[seen, :1]
    np.testing.assert_allclose(go.means[seen], speech, rtol=1e-3, atol=1e-3)


@given(seed=seeds, tau=taus)
def test_posterior_never_falls(seed, tau):
    """EM around a fixed prior raises log-likelihood plus log prior."""
    prior, frames, pdfs, moments = task(seed)

    def objective(gmms):
        _, log_like = gmm_naive.accumulate(gmms, frames, pdfs)
        moved = (gmms.means - prior.means) ** 2 * prior.inv_vars
        return log_like - 0.5 * tau * moved.sum()

    present, values = prior, [objective(prior)]
    for _ in range(4):
        present = map_means(prior, moments, tau)
        values.append(objective(present))
        moments, _ = gmm_naive.accumulate(present, frames, pdfs)
    assert (np.diff(values) > -1e-3).all()
