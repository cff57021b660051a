"""Convolution block by block is that which is written."""

import numpy as np
import pytest

from latflow.simulation.convolution import convolved


@pytest.mark.parametrize(
    ("length", "taps"),
    [(1, 1), (1, 300), (5, 4), (1000, 1), (1000, 64), (700, 900), (50000, 3200)],
)
def test_is_the_convolution(length, taps):
    rng = np.random.default_rng(1)
    wave, responses = rng.standard_normal(length), rng.standard_normal((3, taps))
    wanted = np.stack([np.convolve(wave, row) for row in responses])
    limit = 1e-5 * np.abs(wanted).max()
    got = convolved(wave, responses.astype(np.float32))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=0, atol=limit)
    one = convolved(wave, responses[1].astype(np.float32))
    np.testing.assert_allclose(one, wanted[1], rtol=0, atol=limit)


def test_what_follows_changes_nothing_before():
    """A beginning gives what it gives without the rest, but for rounding."""
    rng = np.random.default_rng(2)
    wave, response = rng.standard_normal(9000), rng.standard_normal(500)
    whole, part = convolved(wave, response), convolved(wave[:4000], response)
    np.testing.assert_allclose(whole[:4000], part[:4000], rtol=0, atol=1e-4)
