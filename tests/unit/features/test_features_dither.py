"""Dither: white, of the wanted strength, and the same wherever it is drawn."""

import numpy as np
import pytest

from latflow.features.dither import dither

STEP = 1 / 32768


def noise(length, key=7, **settings):
    """Noise in steps of a 16-bit sample."""
    return dither(np.zeros(length, np.float32), 1.0, 3, key, **settings) / STEP


def test_it_is_white_and_of_the_wanted_strength():
    found = noise(400_000)
    assert found.dtype == np.float32
    assert abs(found.mean()) < 0.01
    assert found.std() == pytest.approx(1.0, abs=0.01)
    power = np.square(np.abs(np.fft.rfft(found.reshape(-1, 100)))).mean(axis=0) / 100
    np.testing.assert_allclose(power, 1.0, atol=0.1)


def test_it_is_the_same_on_every_day_and_machine():
    np.testing.assert_allclose(noise(3), [0.395695, 0.606493, 1.475372], atol=1e-6)


def test_pieces_have_the_noise_of_the_whole():
    np.testing.assert_array_equal(noise(70, first=30), noise(100)[30:])


def test_utterances_and_channels_have_their_own():
    stereo = dither(np.zeros((2, 10_000), np.float32), 1.0, 3, 7) / STEP
    np.testing.assert_array_equal(stereo[0], noise(10_000))
    for other in (stereo[1], noise(10_000, key=8), noise(10_000, key=1 << 32)):
        assert abs(np.corrcoef(stereo[0], other)[0, 1]) < 0.05


def test_none_changes_nothing():
    wave = np.linspace(-1, 1, 9, dtype=np.float32)
    np.testing.assert_array_equal(dither(wave, 0.0, 3, 7), wave)
