"""What fMLLR owes any data: sums that add up, maxima, no care for coordinates."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.fmllr_naive import auxiliary

from latflow.gmm.fmllr import (
    FmllrStatistics,
    estimate_fmllr,
)
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import FmllrOptions
from latflow.gmm.source import SpeakerTransforms
from latflow.lattice.posteriors import FramePosteriors

seeds = st.integers(0, 2**32 - 1)
OPTIONS = FmllrOptions(min_count=0.0, num_iterations=300)


def speaker(seed, dim, *, num_pdfs=5, num_frames=150):
    """One Gaussian a pdf (so that posteriors are given), frames distorted a little."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 3, (num_pdfs, dim))
    gmms = DiagGmms.from_moments(
        np.arange(num_pdfs + 1),
        np.ones(num_pdfs),
        means,
        rng.uniform(0.3, 3.0, (num_pdfs, dim)),
    )
    pdfs = rng.integers(0, num_pdfs, num_frames).astype(np.int32)
    weights = rng.uniform(0.1, 1.0, num_frames)
    clean = means[pdfs] + rng.normal(0, 1, (num_frames, dim))
    distortion = np.eye(dim) + 0.3 * rng.normal(size=(dim, dim)) / dim
    frames = clean @ distortion.T + rng.normal(0, 2, dim)
    posteriors = FramePosteriors(np.arange(num_frames + 1), pdfs, weights)
    return gmms, frames.astype(np.float32), posteriors, rng


def of(gmms, frames, posteriors):
    found = FmllrStatistics.zeros(gmms.dim)
    found.accumulate(np.asarray(frames, np.float32), posteriors, gmms)
    return found


def part(posteriors, first, last):
    return FramePosteriors(
        posteriors.frame_begin[: last - first + 1],
        posteriors.ids[first:last],
        posteriors.weights[first:last],
    )


@given(seeds, st.integers(1, 6), st.floats(0, 1))
def test_statistics_of_parts_add_up(seed, dim, share):
    gmms, frames, posteriors, _ = speaker(seed, dim)
    cut = int(share * len(frames))
    whole = of(gmms, frames, posteriors)
    both = of(gmms, frames[:cut], part(posteriors, 0, cut))
    both += of(gmms, frames[cut:], part(posteriors, cut, len(frames)))
    assert both.count == pytest.approx(whole.count)
    np.testing.assert_allclose(both.linear, whole.linear, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(both.quadratic, whole.quadratic, rtol=1e-9, atol=1e-9)


@given(seeds, st.integers(1, 5))
def test_slope_of_the_objective_is_0_at_the_estimate(seed, dim):
    gmms, frames, posteriors, _ = speaker(seed, dim)
    statistics = of(gmms, frames, posteriors)
    matrix = estimate_fmllr(statistics, OPTIONS).matrix
    slope = statistics.linear - np.einsum("dce,de->dc", statistics.scatters(), matrix)
    slope[:, :dim] += statistics.count * np.linalg.inv(matrix[:, :dim]).T
    np.testing.assert_allclose(slope / statistics.count, 0.0, atol=1e-4)


@settings(max_examples=15)
@given(seeds, st.integers(1, 5))
def test_estimates_gain_and_no_small_change_gains_more(seed, dim):
    gmms, frames, posteriors, rng = speaker(seed, dim)
    statistics = of(gmms, frames, posteriors)
    identity = auxiliary(np.eye(dim, dim + 1), statistics)
    last = 0.0
    for kind in ("none", "offset", "diag", "full"):
        found = estimate_fmllr(
            statistics,
            FmllrOptions(update_type=kind, min_count=0.0, num_iterations=300),
        )
        reached = auxiliary(found.matrix, statistics)
        assert found.gain == pytest.approx(reached - identity, abs=1e-6)
        assert found.gain >= last - 1e-9 * statistics.count
        last = found.gain
    for _ in range(10):
        change = 1e-2 * rng.normal(size=(dim, dim + 1))
        assert auxiliary(found.matrix + change, statistics) <= reached + 1e-6


@given(seeds, st.integers(1, 5))
def test_more_iterations_never_lose(seed, dim):
    gmms, frames, posteriors, _ = speaker(seed, dim)
    statistics = of(gmms, frames, posteriors)
    gains = [
        estimate_fmllr(statistics, FmllrOptions(min_count=0.0, num_iterations=n)).gain
        for n in (1, 2, 5, 40)
    ]
    assert all(b >= a - 1e-9 * statistics.count for a, b in pairwise(gains))


@given(seeds, st.integers(1, 4))
def test_distorting_all_frames_changes_nothing_after_the_transform(seed, dim):
    """The best features are the same, whatever affine map the frames went through."""
    gmms, frames, posteriors, rng = speaker(seed, dim)
    square = np.eye(dim) + 0.4 * rng.normal(size=(dim, dim)) / dim
    offset = rng.normal(size=dim)
    if np.linalg.cond(square) > 10:
        return
    moved = frames @ square.T + offset
    results = []
    for given_frames in (frames, moved):
        statistics = of(gmms, given_frames, posteriors)
        found = estimate_fmllr(statistics, OPTIONS)
        transforms = SpeakerTransforms({"s": found.matrix})
        results.append(transforms.apply("s", given_frames.astype(np.float32)))
    np.testing.assert_allclose(results[0], results[1], atol=2e-2)


@given(seeds, st.integers(1, 5))
def test_transformed_frames_need_no_second_transform(seed, dim):
    gmms, frames, posteriors, _ = speaker(seed, dim)
    first = estimate_fmllr(of(gmms, frames, posteriors), OPTIONS)
    transforms = SpeakerTransforms({"s": first.matrix})
    better = transforms.apply("s", frames)
    statistics = of(gmms, better, posteriors)
    second = estimate_fmllr(statistics, OPTIONS)
    assert second.gain <= 1e-3 * statistics.count
    np.testing.assert_allclose(second.matrix, np.eye(dim, dim + 1), atol=2e-2)
    both = SpeakerTransforms({"s": second.matrix}).after(transforms)
    np.testing.assert_allclose(
        both.apply("s", frames),
        SpeakerTransforms({"s": second.matrix}).apply("s", better),
        atol=1e-3,
    )
