"""Laws of the E-step, the M-step and mixing up."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import gmm_naive

from latflow.gmm import kernels
from latflow.gmm.device_estep import moments_on_device
from latflow.gmm.estep import _on_cpu, sort_by_pdf
from latflow.gmm.model import DiagGmms
from latflow.gmm.update import (
    UpdateOptions,
    mix_up,
    pdf_occupancies,
    split_targets,
    update_gmms,
)

SEEDS = st.integers(0, 2**31)


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture(scope="module")
def pool_of_four():
    with ThreadPoolExecutor(4) as made:
        yield made


def random_gmms(rng, num_pdfs=4, dim=3, widest=6):
    """Mixtures of 1 to `widest` Gaussians."""
    sizes = rng.integers(1, widest + 1, num_pdfs)
    weights = np.concatenate([rng.dirichlet(np.full(n, 5.0)) for n in sizes])
    shape = (sizes.sum(), dim)
    return DiagGmms.from_moments(
        np.concatenate([[0], np.cumsum(sizes)]),
        weights,
        rng.normal(0, 2, shape),
        rng.uniform(0.2, 3, shape),
    )


def random_data(rng, gmms, num_frames):
    """Frames, and a pdf for each (-1: not aligned)."""
    frames = rng.normal(0, 2, (num_frames, gmms.dim)).astype(np.float32)
    return frames, rng.integers(-1, gmms.num_pdfs, num_frames).astype(np.int32)


def expect(gmms, frames, pdfs, pool):
    """The E-step on frames in memory."""
    order, begin = sort_by_pdf(pdfs, gmms.num_pdfs)
    return _on_cpu(gmms, frames, order, begin, pool)


@given(SEEDS, st.integers(1, 200))
def test_log_likelihoods_equal_the_naive_ones(seed, num_frames):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng)
    frames, _ = random_data(rng, gmms, num_frames)
    found = gmms.log_likelihoods(frames)
    some = gmms.log_likelihoods(frames, [2, 0])
    np.testing.assert_array_equal(some.shape, (num_frames, 2))
    for t in rng.integers(0, num_frames, 5):
        wanted = [
            gmm_naive.log_sum_exp(gmm_naive.scores(gmms, frames[t].astype(float), p))
            for p in range(gmms.num_pdfs)
        ]
        np.testing.assert_allclose(found[t], wanted, rtol=2e-5, atol=2e-4)
        np.testing.assert_allclose(some[t], found[t, [2, 0]], rtol=1e-5, atol=1e-4)


@given(SEEDS, st.integers(1, 150))
def test_e_step_equals_the_naive_one(pool, seed, num_frames):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng)
    frames, pdfs = random_data(rng, gmms, num_frames)
    moments, log_like = expect(gmms, frames, pdfs, pool)
    wanted, wanted_log_like = gmm_naive.accumulate(gmms, frames, pdfs)
    np.testing.assert_allclose(moments, wanted, rtol=1e-3, atol=1e-3)
    assert log_like == pytest.approx(wanted_log_like, rel=1e-5, abs=1e-3)
    assert moments[:, 0].sum() == pytest.approx((pdfs >= 0).sum(), rel=1e-6)


@given(SEEDS, st.integers(1, 300))
def test_torch_e_step_equals_the_kernel(pool, seed, num_frames):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng, widest=9)
    frames, pdfs = random_data(rng, gmms, num_frames)
    order, begin = sort_by_pdf(pdfs, gmms.num_pdfs)
    moments, log_like = expect(gmms, frames, pdfs, pool)
    found, found_log_like = moments_on_device(
        gmms, frames, order, begin, device=torch.device("cpu")
    )
    np.testing.assert_allclose(found, moments, rtol=1e-3, atol=1e-3)
    assert found_log_like == pytest.approx(log_like, rel=1e-6, abs=1e-3)


@given(SEEDS, st.integers(1, 300))
def test_any_number_of_threads_gives_the_same_bits(pool, pool_of_four, seed, count):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng, num_pdfs=12)
    frames, pdfs = random_data(rng, gmms, count)
    one = expect(gmms, frames, pdfs, pool)
    four = expect(gmms, frames, pdfs, pool_of_four)
    np.testing.assert_array_equal(one[0], four[0])
    assert one[1] == four[1]


@given(SEEDS, st.integers(2, 300))
def test_statistics_of_parts_add_up(pool, seed, num_frames):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng)
    frames, pdfs = random_data(rng, gmms, num_frames)
    cut = int(rng.integers(1, num_frames))
    whole = expect(gmms, frames, pdfs, pool)
    first = expect(gmms, frames[:cut], pdfs[:cut], pool)
    second = expect(gmms, frames[cut:], pdfs[cut:], pool)
    np.testing.assert_allclose(first[0] + second[0], whole[0], rtol=1e-9, atol=1e-9)
    assert first[1] + second[1] == pytest.approx(whole[1], rel=1e-12)


@given(SEEDS)
def test_em_raises_the_likelihood(pool, seed):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng, num_pdfs=3)
    frames, pdfs = random_data(rng, gmms, 600)
    # No bound may act; a Gaussian that loses all its frames, or closes in on one frame
    # beyond what float32 can score, ends the check.
    options = UpdateOptions(min_weight=0.0, min_occupancy=1e-3, min_variance=1e-12)
    _, before = expect(gmms, frames, pdfs, pool)
    for _ in range(4):
        moments, _ = expect(gmms, frames, pdfs, pool)
        gmms, report = update_gmms(gmms, moments, options)
        _, after = expect(gmms, frames, pdfs, pool)
        if report.num_removed or gmms.variances.min() < 1e-3:
            return
        assert report.num_floored == 0
        assert after >= before - 1e-6 * abs(before)
        before = after


@given(SEEDS, st.integers(4, 60))
def test_mixing_up_keeps_total_weight(seed, total):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng)
    occupancies = rng.uniform(0, 2000, gmms.num_pdfs)
    more = mix_up(gmms, occupancies, total, rng, power=0.25)
    before = np.add.reduceat(gmms.weights, gmms.begin[:-1])
    after = np.add.reduceat(more.weights, more.begin[:-1])
    np.testing.assert_allclose(after, before, rtol=1e-6)
    assert (np.diff(more.begin) >= np.diff(gmms.begin)).all()
    moved = np.abs(more.means - more.means.mean(axis=0)).max()
    assert np.isfinite(moved)


@given(SEEDS)
def test_weights_sum_to_one_after_an_update(pool, seed):
    rng = np.random.default_rng(seed)
    gmms = random_gmms(rng)
    frames, pdfs = random_data(rng, gmms, 120)
    moments, _ = expect(gmms, frames, pdfs, pool)
    new, report = update_gmms(gmms, moments, UpdateOptions())
    sums = np.add.reduceat(new.weights, new.begin[:-1])
    np.testing.assert_allclose(sums, 1.0, rtol=1e-6)
    assert new.num_gaussians == gmms.num_gaussians - report.num_removed
    assert (np.diff(new.begin) >= 1).all()


def naive_split_targets(occupancies, total, power, min_count):
    """Kaldi's GetSplitTargets with a list in place of the queue."""
    powered = np.asarray(occupancies) ** power
    targets, stopped = [1] * len(powered), [False] * len(powered)
    while sum(targets) < total:
        rank = [
            0.0 if stopped[p] else powered[p] / targets[p] for p in range(len(powered))
        ]
        p = int(np.argmax(rank))
        if rank[p] == 0:
            break
        if (targets[p] + 1) * min_count >= occupancies[p]:
            stopped[p] = True
        else:
            targets[p] += 1
    return targets


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=12), st.integers(1, 80))
def test_split_targets_equal_the_naive_ones(occupancies, total):
    found = split_targets(np.array(occupancies), total, power=0.25)
    assert found.tolist() == naive_split_targets(occupancies, total, 0.25, 20.0)


@given(st.lists(st.floats(-80, 0, width=32), min_size=1, max_size=64))
def test_exp_and_log_of_the_kernels(values):
    x = np.array(values, np.float32)
    out, bits = np.empty_like(x), np.empty(len(x), np.int32)
    kernels._exp_into(x, np.zeros_like(x), out, bits, len(x))
    np.testing.assert_allclose(out, np.exp(x.astype(float)), rtol=3e-7)
    back = np.empty_like(x)
    kernels._log_into(out, back, bits, len(x))
    np.testing.assert_allclose(back, np.log(out.astype(float)), rtol=3e-7, atol=3e-7)


def test_exp_of_very_little_is_nothing():
    x = np.array([-88.0, -1e4, -np.inf], np.float32)
    out, bits = np.empty_like(x), np.empty(3, np.int32)
    kernels._exp_into(x, np.zeros_like(x), out, bits, 3)
    assert out.tolist() == [0.0, 0.0, 0.0]


def test_occupancies_of_pdfs():
    gmms = random_gmms(np.random.default_rng(0))
    moments = np.ones((gmms.num_gaussians, 7))
    np.testing.assert_array_equal(
        pdf_occupancies(gmms, moments), np.diff(gmms.begin).astype(float)
    )
