"""MLLT: statistics against plain loops, maxima against a general optimizer."""

import numpy as np
import pytest
from reference import mllt_naive

from latflow.errors import UserError
from latflow.gmm import mllt
from latflow.gmm.mllt import MlltAccumulator, estimate_mllt, transform_means
from latflow.gmm.model import DiagGmms
from latflow.parallel import worker_pool


def toy(dim=3, sizes=(2, 1, 3), frames_each=40, seed=0):
    """Mixtures, correlated frames around their means, and the frames' pdfs."""
    rng = np.random.default_rng(seed)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    means = rng.normal(0, 3, (begin[-1], dim))
    variances = rng.uniform(0.5, 2.0, (begin[-1], dim))
    weights = np.concatenate([rng.dirichlet(np.full(n, 3.0)) for n in sizes])
    gmms = DiagGmms.from_moments(begin, weights, means, variances)
    gaussian = rng.integers(0, begin[-1], frames_each * len(sizes))
    mix = np.linalg.cholesky(0.5 * np.eye(dim) + 0.5)
    noise = rng.normal(size=(len(gaussian), dim)) @ mix.T
    frames = (gmms.means[gaussian] + noise).astype(np.float32)
    pdfs = np.searchsorted(gmms.begin, gaussian, "right") - 1
    return gmms, frames, pdfs.astype(np.int32)


def accumulated(gmms, frames, pdfs, threads=1):
    found = MlltAccumulator.zeros(gmms.dim)
    with worker_pool(threads) as pool:
        found.accumulate(gmms, frames, pdfs, pool)
    return found


def test_statistics_are_those_of_the_plain_loops():
    gmms, frames, pdfs = toy()
    pdfs[::7] = -1
    ours = accumulated(gmms, frames, pdfs)
    scatters, count = mllt_naive.accumulate(gmms, frames, pdfs)
    np.testing.assert_allclose(ours.scatters, scatters, rtol=1e-4, atol=1e-3)
    assert ours.count == pytest.approx(count)
    assert ours.count == np.count_nonzero(pdfs >= 0)


def test_large_blocks_are_cut_without_changing_the_sums(monkeypatch):
    gmms, frames, pdfs = toy(frames_each=300)
    whole = accumulated(gmms, frames, pdfs)
    monkeypatch.setattr(mllt, "_BLOCK_NUMBERS", 100)
    np.testing.assert_allclose(
        accumulated(gmms, frames, pdfs).scatters, whole.scatters, rtol=1e-6, atol=1e-6
    )


def test_estimate_is_the_maximum_that_a_general_optimizer_finds():
    gmms, frames, pdfs = toy(seed=1)
    statistics = accumulated(gmms, frames, pdfs)
    ours = estimate_mllt(statistics)
    matrix, gain = mllt_naive.best_matrix(statistics.scatters, statistics.count)
    assert ours.gain == pytest.approx(gain, rel=1e-6)
    assert ours.gain_per_frame == ours.gain / len(frames)
    np.testing.assert_allclose(np.abs(ours.matrix), np.abs(matrix), atol=2e-3)


def test_gain_is_that_of_the_densities_themselves():
    gmms, frames, pdfs = toy(seed=2)
    ours = estimate_mllt(accumulated(gmms, frames, pdfs))
    before = mllt_naive.auxiliary(np.eye(3), gmms, frames, pdfs)
    after = mllt_naive.auxiliary(ours.matrix, gmms, frames, pdfs)
    assert ours.gain == pytest.approx(after - before, rel=1e-4)
    assert ours.gain > 1.0


def test_nothing_is_left_to_gain_after_convergence():
    gmms, frames, pdfs = toy(dim=5, seed=3)
    statistics = accumulated(gmms, frames, pdfs)
    best = estimate_mllt(statistics).matrix
    # S_g of the features A x is A S_g A'.
    turned = np.einsum("ab,ibc,dc->iad", best, statistics.scatters, best)
    again = estimate_mllt(MlltAccumulator(turned, statistics.count))
    assert 0 <= again.gain_per_frame < 1e-6
    np.testing.assert_allclose(again.matrix, np.eye(5), atol=2e-3)


def test_frames_that_do_not_correlate_leave_the_features_alone():
    # One frame at +-1 standard deviation along each axis: scatter is the variance.
    gmms = DiagGmms.from_moments(
        np.array([0, 1]), np.ones(1), np.zeros((1, 2)), np.array([[4.0, 9.0]])
    )
    corners = np.array([[2, 3], [2, -3], [-2, 3], [-2, -3]], np.float32)
    found = estimate_mllt(accumulated(gmms, corners, np.zeros(4, np.int32)))
    np.testing.assert_allclose(found.matrix, np.eye(2), atol=1e-6)
    assert found.gain == pytest.approx(0, abs=1e-6)


def test_threads_do_not_change_a_bit():
    gmms, frames, pdfs = toy(sizes=(3, 2, 5, 1, 4), frames_each=500, seed=4)
    one, three = (accumulated(gmms, frames, pdfs, threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one.scatters, three.scatters)


def test_means_move_with_the_features():
    gmms, _, _ = toy()
    matrix = np.random.default_rng(0).normal(size=(3, 4))
    moved = transform_means(gmms, matrix)
    expected = gmms.means @ matrix[:, :3].T + matrix[:, 3]
    np.testing.assert_allclose(moved.means, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(moved.inv_vars, gmms.inv_vars)
    np.testing.assert_array_equal(moved.weights, gmms.weights)
    linear = transform_means(gmms, matrix[:, :3])
    np.testing.assert_allclose(linear.means, expected - matrix[:, 3], atol=1e-4)


def test_few_frames_are_refused():
    gmms, frames, pdfs = toy(frames_each=5)
    with pytest.raises(UserError, match="MLLT of 3 dimensions from 4 frames"):
        estimate_mllt(accumulated(gmms, frames[:4], pdfs[:4]))


def test_frames_of_another_dimension_are_refused():
    gmms, frames, pdfs = toy()
    with pytest.raises(UserError, match="dimension 2, but the model is of 3"):
        accumulated(gmms, frames[:, :2], pdfs)


def test_no_frames_add_nothing():
    gmms, frames, pdfs = toy()
    found = accumulated(gmms, frames, np.full_like(pdfs, -1))
    assert found.count == 0
    assert not found.scatters.any()
