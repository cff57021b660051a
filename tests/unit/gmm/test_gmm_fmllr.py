"""fMLLR of one speaker: statistics, estimates, and what is refused."""

import logging

import numpy as np
import pytest
from reference import fmllr_naive
from reference.fmllr_naive import auxiliary

from latflow.errors import UserError
from latflow.gmm.fmllr import (
    FmllrStatistics,
    estimate_fmllr,
)
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import FmllrOptions
from latflow.lattice.posteriors import FramePosteriors

FREE = FmllrOptions(min_count=0.0, num_iterations=200)


def mixtures(rng, dim, num_pdfs, sizes=None):
    """Mixtures of 1 to 3 Gaussians."""
    sizes = rng.integers(1, 4, num_pdfs) if sizes is None else sizes
    begin = np.concatenate([[0], np.cumsum(sizes)])
    return DiagGmms.from_moments(
        begin,
        np.concatenate([rng.dirichlet(np.ones(n)) for n in sizes]),
        rng.normal(0, 2, (begin[-1], dim)),
        rng.uniform(0.3, 3.0, (begin[-1], dim)),
    )


def made_up(seed, dim=3, num_pdfs=4, num_frames=60):
    """(mixtures, a second model of them, frames, posteriors, the same as dicts).

    Frames are like those of the mixtures, through an affine map.
    """
    rng = np.random.default_rng(seed)
    gmms = mixtures(rng, dim, num_pdfs)
    target = mixtures(rng, dim, num_pdfs, np.diff(gmms.begin))
    weights, frames = [], rng.normal(0, 1, (num_frames, dim))
    for t in range(num_frames):
        pdfs = rng.choice(num_pdfs, rng.integers(0, 3), replace=False)
        weights.append({int(p): float(rng.uniform(0.1, 1)) for p in np.sort(pdfs)})
        if len(pdfs):
            frames[t] += gmms.means[gmms.begin[pdfs[0]]]
    frames = frames @ (np.eye(dim) + 0.1 * rng.normal(0, 1, (dim, dim))) + 0.5
    return gmms, target, frames.astype(np.float32), as_posteriors(weights), weights


def as_posteriors(weights):
    begin = np.concatenate([[0], np.cumsum([len(w) for w in weights])])
    return FramePosteriors(
        begin.astype(np.int64),
        np.array([p for w in weights for p in w], np.int32),
        np.array([v for w in weights for v in w.values()]),
    )


def statistics_of(gmms, frames, posteriors, target=None):
    found = FmllrStatistics.zeros(gmms.dim)
    found.accumulate(frames, posteriors, gmms, target=target)
    return found


@pytest.mark.parametrize("has_target", [False, True])
def test_statistics_are_those_of_plain_loops(has_target):
    gmms, second, frames, posteriors, weights = made_up(1)
    target = second if has_target else None
    found = statistics_of(gmms, frames, posteriors, target)
    count, linear, scatters = fmllr_naive.accumulate(gmms, frames, weights, target)
    assert found.count == pytest.approx(count)
    np.testing.assert_allclose(found.linear, linear, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.scatters(), scatters, rtol=1e-4, atol=1e-4)


def test_blocks_of_frames_do_not_matter():
    gmms, _, frames, posteriors, _ = made_up(2, num_frames=700)
    whole = statistics_of(gmms, frames, posteriors)
    parts = FmllrStatistics.zeros(gmms.dim)
    for t in range(len(frames)):
        first, last = posteriors.frame_begin[t], posteriors.frame_begin[t + 1]
        begin = np.array([0, last - first])
        one = FramePosteriors(
            begin, posteriors.ids[first:last], posteriors.weights[first:last]
        )
        parts.accumulate(frames[t : t + 1], one, gmms)
    assert parts.count == pytest.approx(whole.count)
    np.testing.assert_allclose(parts.linear, whole.linear, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(parts.quadratic, whole.quadratic, rtol=1e-9)


def test_frames_without_posteriors_do_not_count():
    gmms, _, frames, posteriors, weights = made_up(3)
    empty = np.array([not w for w in weights])
    assert empty.any()
    frames[empty] = np.nan
    found = statistics_of(gmms, frames, posteriors)
    assert np.isfinite(found.linear).all()
    assert np.isfinite(found.quadratic).all()


def test_objective_is_the_likelihood_of_transformed_frames():
    gmms, target, frames, posteriors, weights = made_up(4)
    found = statistics_of(gmms, frames, posteriors, target)
    rng = np.random.default_rng(0)
    matrices = [np.eye(3, 4), rng.normal(size=(3, 4)), rng.normal(size=(3, 4))]
    ours = [auxiliary(m, found) for m in matrices]
    plain = [
        fmllr_naive.log_likelihood(m, gmms, frames, weights, target) for m in matrices
    ]
    # The objective leaves out what no transform changes.
    np.testing.assert_allclose(
        np.diff(ours), np.diff(plain), rtol=1e-4, atol=1e-3 * found.count
    )


@pytest.mark.parametrize("seed", range(4))
def test_full_transform_is_the_maximum_a_general_optimizer_finds(seed):
    gmms, _, frames, posteriors, _ = made_up(seed, num_frames=120)
    found = statistics_of(gmms, frames, posteriors)
    ours = estimate_fmllr(found, FREE)
    matrix, gain = fmllr_naive.best_matrix(found.count, found.linear, found.scatters())
    assert ours.gain == pytest.approx(gain, abs=1e-5 * found.count)
    np.testing.assert_allclose(ours.matrix, matrix, rtol=1e-3, atol=1e-3)
    assert ours.is_estimated


def test_types_differ_in_what_they_may_change():
    gmms, _, frames, posteriors, _ = made_up(5, num_frames=200)
    found = statistics_of(gmms, frames, posteriors)
    kinds = ("none", "offset", "diag", "full")
    estimates = [
        estimate_fmllr(
            found, FmllrOptions(update_type=k, min_count=0.0, num_iterations=60)
        )
        for k in kinds
    ]
    none, offset, diag, full = estimates
    np.testing.assert_array_equal(none.matrix, np.eye(3, 4))
    np.testing.assert_array_equal(offset.matrix[:, :3], np.eye(3))
    np.testing.assert_array_equal(diag.matrix[:, :3] * (1 - np.eye(3)), 0)
    assert (np.diag(diag.matrix) > 0).all()
    gains = [estimate.gain for estimate in estimates]
    assert gains[0] == 0
    assert gains == sorted(gains)
    assert full.gain > diag.gain > offset.gain > 0
    # Of each type the best: no step within the type gains anything.
    for estimate, is_free in (
        (offset, np.eye(4)[3]),
        (diag, np.hstack([np.eye(3), np.ones((3, 1))])),
    ):
        best = auxiliary(estimate.matrix, found)
        for step in (-1e-3, 1e-3):
            changed = estimate.matrix + step * is_free
            assert auxiliary(changed, found) < best


def test_speakers_with_too_few_frames_keep_their_features():
    gmms, _, frames, posteriors, _ = made_up(6)
    found = statistics_of(gmms, frames, posteriors)
    at_bound = FmllrOptions(min_count=found.count)
    below = FmllrOptions(min_count=0.99 * found.count)
    kept = estimate_fmllr(found, at_bound)
    np.testing.assert_array_equal(kept.matrix, np.eye(3, 4))
    assert (kept.gain, kept.is_estimated) == (0.0, False)
    assert kept.count == found.count
    assert estimate_fmllr(found, below).is_estimated


def test_no_frames_give_no_transform():
    nothing = estimate_fmllr(FmllrStatistics.zeros(3), FREE)
    np.testing.assert_array_equal(nothing.matrix, np.eye(3, 4))
    assert not nothing.is_estimated


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_speaker_whose_frames_are_all_alike_keeps_them(caplog, kind):
    """The likelihood has no maximum: the frames could all be moved onto a mean."""
    gmms, _, frames, posteriors, _ = made_up(8)
    found = statistics_of(gmms, np.zeros_like(frames), posteriors)
    with caplog.at_level(logging.WARNING):
        kept = estimate_fmllr(found, FmllrOptions(update_type=kind, min_count=0.0))
    np.testing.assert_array_equal(kept.matrix, np.eye(3, 4))
    assert not kept.is_estimated
    assert "stay as they are" in caplog.text


def test_parts_that_do_not_fit_are_refused():
    gmms, _, frames, posteriors, _ = made_up(9)
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="dimension 2, but the model is of 3"):
        statistics_of(gmms, frames[:, :2], posteriors)
    with pytest.raises(UserError, match="posteriors of 60 frames for 59"):
        statistics_of(gmms, frames[1:], posteriors)
    other = mixtures(rng, 3, 4, np.diff(gmms.begin) + 1)
    with pytest.raises(UserError, match=r"alignment model of \d+ Gaussians"):
        statistics_of(gmms, frames, posteriors, other)
    few = mixtures(rng, 3, 2)
    with pytest.raises(UserError, match="posteriors of pdf 3, but the model has 2"):
        statistics_of(few, frames, posteriors)
