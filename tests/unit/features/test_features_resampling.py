"""The streaming resampler against SciPy's, and in pieces against itself."""

import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st

from latflow.features.resampling import StreamingResampler, resample

RATES = [(8000, 16000), (44100, 16000), (16000, 8000), (11025, 8000), (48000, 16000)]


@pytest.mark.parametrize(("rate_in", "rate_out"), RATES)
@pytest.mark.parametrize("length", [1, 5, 37, 4001])
def test_it_gives_the_numbers_of_scipy(rate_in, rate_out, length):
    signal = np.random.default_rng(length).normal(size=length).astype(np.float32)
    divisor = np.gcd(rate_in, rate_out)
    expected = scipy.signal.resample_poly(
        signal.astype(np.float64), rate_out // divisor, rate_in // divisor
    )
    found = resample(signal, rate_in, rate_out)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


@given(
    rates=st.sampled_from(RATES),
    pieces=st.lists(st.integers(0, 300), max_size=12),
    seed=st.integers(0, 100),
)
def test_pieces_make_no_difference(rates, pieces, seed):
    signal = np.random.default_rng(seed).normal(size=sum(pieces)).astype(np.float32)
    resampler = StreamingResampler(*rates)
    cuts = np.cumsum(pieces)[:-1] if pieces else []
    found = [resampler.accept(piece) for piece in np.split(signal, cuts)]
    found.append(resampler.finish())
    np.testing.assert_array_equal(np.concatenate(found), resample(signal, *rates))


def test_a_tone_keeps_its_pitch_and_place():
    time = np.arange(16000) / 8000
    tone = np.sin(2 * np.pi * 440 * time).astype(np.float32)
    found = resample(tone, 8000, 16000)
    expected = np.sin(2 * np.pi * 440 * np.arange(32000) / 16000)
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=2e-3)


def test_the_same_rate_changes_nothing():
    signal = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(resample(signal, 16000, 16000), signal)


def test_little_is_held_of_a_long_signal():
    resampler = StreamingResampler(44100, 16000)
    for _ in range(50):
        resampler.accept(np.zeros(4410, np.float32))
    assert len(resampler._held) < 200
