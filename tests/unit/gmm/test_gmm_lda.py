"""Linear discriminant analysis: two classes by hand, invariances, mistakes."""

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.gmm.lda_mllt import LdaAccumulator, estimate_lda
from latflow.parallel import worker_pool


def accumulated(frames, classes, num_classes, threads=1):
    found = LdaAccumulator.zeros(num_classes, frames.shape[1])
    with worker_pool(threads) as pool:
        found.accumulate(frames, classes, pool)
    return found


def clouds(num_classes, dim, seed, frames_each=200):
    """Normal clouds around random means; float32[T, D], int32[T]."""
    rng = np.random.default_rng(seed)
    classes = np.repeat(np.arange(num_classes, dtype=np.int32), frames_each)
    means = rng.normal(0, 3, (num_classes, dim))
    mix = rng.normal(size=(dim, dim))
    frames = means[classes] + rng.normal(size=(len(classes), dim)) @ mix
    return frames.astype(np.float32), classes


def test_two_classes_are_told_apart_along_fishers_direction():
    # Both classes have variance 4 along x and 1 along y, no correlation:
    #   means (-3, -1), (3, 1), so Fisher's direction W^-1 (difference) is (6/4, 2/1).
    square = np.array([[2, 1], [2, -1], [-2, 1], [-2, -1]], np.float32)
    mean = np.array([3, 1], np.float32)
    frames = np.concatenate([square - mean, square + mean])
    classes = np.repeat(np.arange(2, dtype=np.int32), 4)
    lda = estimate_lda(accumulated(frames, classes, 2), dim=1)
    direction = lda.matrix(1)[0]
    np.testing.assert_allclose(direction[0] / direction[1], 1.5 / 2.0, rtol=1e-6)
    # Between the classes 9/4 + 1/1 for a unit inside them; nothing in the other one.
    np.testing.assert_allclose(lda.ratios, [3.25, 0.0], atol=1e-7)


def test_projected_classes_have_unit_variance_and_falling_ratios():
    frames, classes = clouds(12, 7, seed=1)
    lda = estimate_lda(accumulated(frames, classes, 12), dim=5)
    projected = (frames @ lda.full.T).astype(np.float32)
    within, between = accumulated(projected, classes, 12).covariances()
    np.testing.assert_allclose(within, np.eye(7), atol=1e-4)
    np.testing.assert_allclose(
        between, np.diag(lda.ratios), atol=1e-5 * lda.ratios.max()
    )
    assert (np.diff(lda.ratios) <= 0).all()
    top = np.take_along_axis(lda.full, np.abs(lda.full).argmax(1)[:, None], 1)
    assert (top > 0).all()


def test_linear_change_of_the_features_changes_nothing_after_lda():
    frames, classes = clouds(9, 4, seed=2)
    change = np.random.default_rng(3).normal(size=(4, 4))
    moved = (frames @ change.T + 5.0).astype(np.float32)
    ours = estimate_lda(accumulated(frames, classes, 9), dim=4)
    theirs = estimate_lda(accumulated(moved, classes, 9), dim=4)
    np.testing.assert_allclose(ours.ratios, theirs.ratios, rtol=1e-3)
    again = theirs.full @ change  # the same directions, but for their signs
    again *= np.sign((again * ours.full).sum(axis=1))[:, None]
    np.testing.assert_allclose(again, ours.full, atol=2e-3 * np.abs(ours.full).max())


def test_offset_takes_the_mean_to_zero():
    frames, classes = clouds(6, 4, seed=4)
    lda = estimate_lda(accumulated(frames + np.float32(7), classes, 6), dim=3)
    matrix = lda.matrix(3, remove_offset=True)
    assert matrix.shape == (3, 5)
    centred = (frames + 7) @ matrix[:, :4].T + matrix[:, 4]
    np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-4)
    assert lda.matrix(3).shape == (3, 4)


def test_within_class_factor_scales_rows_as_kaldi_does():
    frames, classes = clouds(6, 4, seed=5)
    statistics = accumulated(frames, classes, 6)
    plain = estimate_lda(statistics, dim=3)
    shrunk = estimate_lda(statistics, dim=3, within_class_factor=0.1)
    expected = np.sqrt((0.1 + plain.ratios) / (1 + plain.ratios))
    np.testing.assert_allclose(
        np.linalg.norm(shrunk.full, axis=1) / np.linalg.norm(plain.full, axis=1),
        expected,
    )


def test_frames_without_a_class_do_not_count():
    frames, classes = clouds(5, 3, seed=6)
    some = np.where(np.arange(len(classes)) % 3 == 0, -1, classes).astype(np.int32)
    ours = accumulated(frames, some, 5)
    only = accumulated(frames[some >= 0], some[some >= 0], 5)
    np.testing.assert_allclose(ours.scatter, only.scatter, rtol=1e-12)
    np.testing.assert_array_equal(ours.sums, only.sums)
    assert ours.num_frames == (some >= 0).sum()


def test_threads_do_not_change_a_bit():
    frames, classes = clouds(5, 3, seed=7, frames_each=9000)
    one, three = (accumulated(frames, classes, 5, threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one.scatter, three.scatter)
    np.testing.assert_array_equal(one.sums, three.sums)


def test_too_many_dimensions_are_refused():
    frames, classes = clouds(4, 6, seed=8)
    with pytest.raises(UserError, match=r"LDA to 4 dimensions, but 4 pdfs.*3 at most"):
        estimate_lda(accumulated(frames, classes, 9), dim=4)


def test_features_that_follow_from_others_are_refused():
    frames, classes = clouds(8, 3, seed=9)
    copied = np.hstack([frames, frames[:, :1]])
    with pytest.raises(UserError, match="vary independently"):
        estimate_lda(accumulated(copied, classes, 8), dim=2)
