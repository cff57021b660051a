"""Deltas and splicing: equal to their slow twins, and what must hold for any input."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import features as reference

from latflow.errors import UserError
from latflow.features.transform import (
    Chain,
    Deltas,
    FeatureTransform,
    Identity,
    Linear,
    Splice,
)


def random_frames(T, D, seed):
    return np.random.default_rng(seed).normal(size=(T, D)).astype(np.float32)


@given(
    st.integers(1, 30), st.integers(1, 15), st.integers(0, 3), st.integers(1, 3),
    st.integers(0, 1000),
)  # fmt: skip
def test_deltas_equal_kaldis_recursion(T, D, order, window, seed):
    frames = random_frames(T, D, seed)
    wanted = reference.deltas(frames, order, window)
    np.testing.assert_allclose(
        Deltas(order, window)(frames), wanted, rtol=1e-5, atol=1e-5
    )


@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 5), st.integers(0, 5))
def test_splice_equals_its_twin(T, D, left, right):
    frames = random_frames(T, D, T)
    np.testing.assert_array_equal(
        Splice(left, right)(frames), reference.splice(frames, left, right)
    )


@given(st.integers(1, 700), st.integers(1, 3))
def test_deltas_of_constant_frames_are_zero(T, order):
    frames = np.full((T, 3), 7.0, np.float32)
    out = Deltas(order)(frames)
    np.testing.assert_array_equal(out[:, :3], frames)
    np.testing.assert_allclose(out[:, 3:], 0.0, atol=1e-5)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=5), st.integers(0, 100))
def test_many_utterances_at_once_equal_each_alone(lengths, seed):
    frames = random_frames(sum(lengths), 13, seed)
    begin = np.concatenate([[0], np.cumsum(lengths)])
    transform = Chain([Deltas(2, 2), Splice(1, 2)])
    together = transform.apply(frames, begin)
    apart = [transform(frames[b:e]) for b, e in itertools.pairwise(begin)]
    np.testing.assert_array_equal(together, np.concatenate(apart))
    assert together.shape[1] == transform.dim_out(13)


@pytest.mark.parametrize(
    "transform",
    [
        Identity(),
        Deltas(3, 1),
        Splice(0, 2),
        Chain([Splice(1, 1), Deltas()]),
        Chain([]),
    ],
)
def test_config_round_trip(transform):
    again = FeatureTransform.from_config(transform.to_config())
    frames = random_frames(9, 4, 0)
    np.testing.assert_array_equal(again(frames), transform(frames))
    assert again.to_config() == transform.to_config()


def test_result_is_writable_and_independent_of_the_input():
    frames = random_frames(5, 2, 1)
    frames.setflags(write=False)
    for transform in (Identity(), Deltas(), Splice(1, 1), Chain([])):
        out = transform(frames)
        assert out.flags.writeable
        assert out.flags.c_contiguous
        assert out.dtype == np.float32
        assert not np.shares_memory(out, frames)


def test_unknown_type_and_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="unknown transform"):
        FeatureTransform.from_config({"type": "dct"})
    with pytest.raises(ValueError, match="window >= 1"):
        Deltas(2, 0)
    with pytest.raises(ValueError, match="right >= 0"):
        Splice(1, -1)


@given(st.integers(0, 30), st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_linear_is_a_matrix_product_with_an_offset(T, D, D_out, has_offset):
    frames = random_frames(T, D, T + D)
    matrix = random_frames(D_out, D + has_offset, 7)
    wanted = frames.astype(float) @ matrix[:, :D].astype(float).T
    if has_offset:
        wanted += matrix[:, D]
    linear = Linear(matrix)
    np.testing.assert_allclose(linear(frames), wanted, rtol=1e-4, atol=1e-5)
    again = FeatureTransform.from_config(linear.to_config())
    np.testing.assert_array_equal(again(frames), linear(frames))
    assert linear.dim_out(D) == D_out


def test_linear_names_the_dimensions_that_do_not_fit():
    with pytest.raises(UserError, match="frames of dimension 7, but .* 2 x 4"):
        Linear(np.ones((2, 4)))(np.ones((3, 7), np.float32))


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(1, 2))
def test_frames_beyond_the_context_change_nothing(left, right, order, window):
    transform = Chain([Deltas(order, window), Splice(left, right), Identity()])
    before, behind = transform.context
    frames = random_frames(40, 2, 1)
    whole, t = transform(frames)[20], 20
    part = transform(frames[t - before : t + behind + 1])[before]
    np.testing.assert_allclose(part, whole, rtol=1e-5, atol=1e-6)
    if before:
        changed = frames.copy()
        changed[t - before] += 100.0
        assert np.abs(transform(changed)[20] - whole).max() > 1.0
