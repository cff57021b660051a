"""Resampling and noise of the synthetic corpus."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.corpus.espeak import add_noise, resample


@given(
    frequency=st.floats(50, 3500),
    rate_out=st.sampled_from([8000, 11025, 16000, 22050]),
    length=st.integers(2000, 9000),
)
def test_resampled_tone_is_the_tone(frequency, rate_out, length):
    def tone(rate, count):
        t = np.arange(count) / rate
        window = (
            np.where(t < length / 22050, np.sin(np.pi * t * 22050 / length), 0) ** 4
        )
        return np.sin(2 * np.pi * frequency * t) * window

    found = resample(tone(22050, length), 22050, rate_out)
    assert len(found) >= length * rate_out / 22050
    assert found == pytest.approx(tone(rate_out, len(found)), abs=2e-3)


@given(
    snr_db=st.floats(-20, 60), seed=st.integers(0, 99), length=st.integers(100, 5000)
)
def test_noise_has_the_power_asked_for(snr_db, seed, length):
    clean = np.random.default_rng(seed).standard_normal(length)
    noise = add_noise(clean, snr_db, np.random.default_rng(seed + 1)) - clean
    measured = 10 * np.log10(np.mean(clean**2) / np.mean(noise**2))
    assert measured == pytest.approx(snr_db, abs=1e-6)


def test_noise_is_pink():
    noise = add_noise(np.ones(1 << 16), 0.0, np.random.default_rng(0)) - 1
    power = np.abs(np.fft.rfft(noise)) ** 2
    octaves = [power[1 << k : 2 << k].sum() for k in range(8, 15)]
    assert np.allclose(octaves / np.mean(octaves), 1.0, atol=0.25)
