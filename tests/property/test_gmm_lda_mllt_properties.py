"""Statistics of LDA and MLLT add up; their estimates are optimal on any data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import lda_naive

from latflow.gmm.lda_mllt import LdaAccumulator, estimate_lda
from latflow.gmm.mllt import MlltAccumulator, estimate_mllt
from latflow.gmm.model import DiagGmms
from latflow.parallel import worker_pool

seeds = st.integers(0, 2**32 - 1)


def lda_of(num_classes, *parts):
    found = LdaAccumulator.zeros(num_classes, parts[0][0].shape[1])
    with worker_pool(1) as pool:
        for frames, classes in parts:
            found.accumulate(frames, classes, pool)
    return found


def mllt_of(gmms, *parts):
    found = MlltAccumulator.zeros(gmms.dim)
    with worker_pool(1) as pool:
        for frames, pdfs in parts:
            found.accumulate(gmms, frames, pdfs, pool)
    return found


def data(seed, dim, num_pdfs, num_frames):
    """Mixtures of 1 to 3 Gaussians, frames, pdfs of which some are -1."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, num_pdfs)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    gmms = DiagGmms.from_moments(
        begin,
        np.concatenate([rng.dirichlet(np.ones(n)) for n in sizes]),
        rng.normal(0, 2, (begin[-1], dim)),
        rng.uniform(0.3, 3.0, (begin[-1], dim)),
    )
    pdfs = rng.integers(-1, num_pdfs, num_frames).astype(np.int32)
    frames = rng.normal(0, 2, (num_frames, dim)) @ rng.normal(size=(dim, dim))
    return gmms, (frames + pdfs[:, None]).astype(np.float32), pdfs


@given(seeds, st.integers(1, 6), st.integers(2, 8), st.integers(0, 60), st.floats(0, 1))
def test_statistics_of_parts_add_up(seed, dim, num_pdfs, num_frames, share):
    gmms, frames, pdfs = data(seed, dim, num_pdfs, num_frames)
    cut = int(share * num_frames)
    parts = ((frames[:cut], pdfs[:cut]), (frames[cut:], pdfs[cut:]))
    whole, both = lda_of(num_pdfs, (frames, pdfs)), lda_of(num_pdfs, *parts)
    np.testing.assert_allclose(both.scatter, whole.scatter, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(both.sums, whole.sums, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(both.counts, whole.counts)
    whole, both = mllt_of(gmms, (frames, pdfs)), mllt_of(gmms, *parts)
    scale = max(1.0, float(np.abs(whole.scatters).max()))
    # The posteriors are float32: blocks of other sizes may round them differently.
    np.testing.assert_allclose(both.scatters, whole.scatters, atol=1e-5 * scale)
    assert both.count == whole.count


@given(seeds, st.integers(2, 5), st.integers(3, 7))
def test_covariances_are_those_of_the_plain_loops(seed, dim, num_classes):
    _, frames, classes = data(seed, dim, num_classes, 80)
    within, between = lda_of(num_classes, (frames, classes)).covariances()
    expected = lda_naive.covariances(frames, classes)
    np.testing.assert_allclose(within, expected[0], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(between, expected[1], rtol=1e-7, atol=1e-7)


@given(seeds, st.integers(2, 5))
def test_no_direction_tells_classes_apart_better_than_the_first(seed, dim):
    _, frames, classes = data(seed, dim, dim + 3, 120)
    statistics = lda_of(dim + 3, (frames, classes))
    lda = estimate_lda(statistics, dim=dim)
    covariances = statistics.covariances()
    rng = np.random.default_rng(seed)
    best = lda_naive.ratio(lda.full[0], *covariances)
    assert best == pytest.approx(lda.ratios[0], rel=1e-6)
    for direction in rng.normal(size=(20, dim)):
        assert lda_naive.ratio(direction, *covariances) <= best * (1 + 1e-9)


@settings(max_examples=15)
@given(seeds, st.integers(1, 5))
def test_mllt_gains_and_no_small_change_gains_more(seed, dim):
    gmms, frames, pdfs = data(seed, dim, 3, 150)
    statistics = mllt_of(gmms, (frames, pdfs))
    found = estimate_mllt(statistics)
    assert found.gain_per_frame >= -1e-9

    def objective(matrix):
        quadratic = np.einsum("id,ide,ie->", matrix, statistics.scatters, matrix)
        return statistics.count * np.linalg.slogdet(matrix)[1] - 0.5 * quadratic

    best = objective(found.matrix)
    assert best - objective(np.eye(dim)) == pytest.approx(
        found.gain, rel=1e-6, abs=1e-6
    )
    rng = np.random.default_rng(seed)
    for _ in range(10):
        change = 1e-2 * rng.normal(size=(dim, dim)) @ found.matrix
        assert objective(found.matrix + change) <= best + 1e-6 * abs(best)
