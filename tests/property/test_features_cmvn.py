"""CMVN: zero means, unit variances, additive statistics, Kaldi's sliding window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import features as reference

from latflow.errors import UserError
from latflow.features.cmvn import apply_cmvn, cmvn_statistics, sliding_cmvn


def random_frames(T, seed, D=4):
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 20, D)
    return (rng.normal(size=(T, D)) * scale + rng.normal(size=D) * 30).astype(
        np.float32
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 1000))
def test_speaker_statistics_add_up_and_give_zero_mean(lengths, seed):
    utterances = [random_frames(T, seed + i) for i, T in enumerate(lengths)]
    stats = sum(cmvn_statistics(u) for u in utterances)
    together = np.concatenate(utterances)
    np.testing.assert_allclose(stats, cmvn_statistics(together), rtol=1e-12)
    normalised = np.concatenate([apply_cmvn(u, stats) for u in utterances])
    np.testing.assert_allclose(normalised.mean(axis=0), 0.0, atol=1e-4)
    assert normalised.dtype == np.float32


@given(st.integers(5, 100), st.integers(0, 1000))
def test_norm_vars_gives_unit_variance(T, seed):
    frames = random_frames(T, seed)
    normalised = apply_cmvn(frames, cmvn_statistics(frames), norm_vars=True)
    np.testing.assert_allclose(normalised.mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(normalised.var(axis=0), 1.0, atol=1e-2)


@given(
    st.integers(1, 60), st.integers(1, 40), st.integers(1, 40), st.booleans(),
    st.booleans(), st.integers(0, 100),
)  # fmt: skip
def test_sliding_equals_windows_one_by_one(
    T, window, min_window, center, norm_vars, seed
):
    frames = random_frames(T, seed)
    options = {
        "window": window, "min_window": min_window, "center": center,
        "norm_vars": norm_vars,
    }  # fmt: skip
    wanted = reference.sliding_cmvn(frames, **options)
    np.testing.assert_allclose(sliding_cmvn(frames, **options), wanted, atol=2e-3)


def test_sliding_over_a_long_utterance_keeps_its_precision():
    frames = random_frames(20_000, 3) + np.float32(1000.0)
    out = sliding_cmvn(frames, window=300, center=True, norm_vars=True)
    middle = frames[9850:10150].astype(np.float64)
    wanted = (frames[10_000] - middle.mean(axis=0)) / middle.std(axis=0)
    np.testing.assert_allclose(out[10_000], wanted, atol=1e-4)


def test_constant_frames_do_not_divide_by_zero():
    frames = np.ones((5, 2), np.float32)
    stats = cmvn_statistics(frames)
    assert np.isfinite(apply_cmvn(frames, stats, norm_vars=True)).all()
    assert np.isfinite(sliding_cmvn(frames, norm_vars=True)).all()


def test_statistics_of_nothing_are_refused():
    with pytest.raises(UserError, match="no frames"):
        apply_cmvn(np.ones((1, 2)), cmvn_statistics(np.empty((0, 2))))
