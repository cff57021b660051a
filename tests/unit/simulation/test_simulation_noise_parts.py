"""Parts of noises: no repetition where there is enough, no click, no silence."""

import numpy as np
import pytest

from latflow.simulation.noises import cut_noise

RATE = 8000


def noise_of(length):
    return np.random.default_rng(1).standard_normal(length).astype(np.float32)


@pytest.mark.parametrize("begin", [0.0, 0.5, 0.99999])
@pytest.mark.parametrize(("length", "lead"), [(1000, 0), (1000, 300), (5000, 0)])
def test_a_noise_that_is_long_enough_does_not_repeat(begin, length, lead):
    noise = noise_of(5000)
    part = cut_noise(noise, begin, length, number=1, lead=lead, rate=RATE)
    assert not part.repeats
    first = int(begin * (5000 - length + 1))
    np.testing.assert_array_equal(part.samples[0], noise[first : first + length])


def test_a_short_noise_repeats_without_a_click():
    slope = np.linspace(1, 2, 4000, dtype=np.float32)
    part = cut_noise(slope, 0.3, 9000, number=1, lead=0, rate=RATE)
    assert part.repeats
    assert np.abs(np.diff(part.samples[0])).max() < 0.05  # of a step of 1
    longer = cut_noise(slope, 0.3, 4001, number=1, lead=500, rate=RATE)
    assert longer.repeats


def test_parts_of_several_microphones_are_apart_or_repeat():
    noise = noise_of(9000)
    apart = cut_noise(noise, 0.9, 1000, number=3, lead=0, rate=RATE)
    assert not apart.repeats
    assert np.abs(np.corrcoef(apart.samples) - np.eye(3)).max() < 0.15
    assert cut_noise(noise, 0.9, 4000, number=3, lead=0, rate=RATE).repeats


def test_quiet_parts_are_not_taken():
    noise = 1e-4 * noise_of(20000)
    noise[15000:] = noise_of(5000)
    part = cut_noise(noise, 0.1, 1000, number=1, lead=0, rate=RATE)
    assert part.is_moved
    assert np.square(part.samples).mean() > 0.1
    loud = cut_noise(noise, 0.9, 1000, number=1, lead=0, rate=RATE)
    assert not loud.is_moved
    click = np.full(200000, 1e-6, np.float32)
    click[777] = 1.0
    found = cut_noise(click, 0.5, 500, number=1, lead=100, rate=RATE)
    assert found.samples[0, 100:].max() == 1.0
