"""Draws of rows: the formula of SplitMix64, whatever device computes it."""

import zlib

import numpy as np
import pytest
import torch

from latflow.nnet.draws import RowDraws

KEYS = [0, 1, 7919, 2**62 + 12345, 2**63 - 1, -1, -(2**63)]


def mixed(keys, numbers):
    """Twin of the hash, in NumPy's integers without sign."""
    value = keys + np.asarray(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def uniform(keys, call, count):
    """Twin of the numbers of a call."""
    begin = mixed(np.asarray(keys, np.int64).view(np.uint64), call)
    found = mixed(begin[:, None], np.arange(1, count + 1))
    return (found >> np.uint64(11)).astype(np.float64) * 2.0**-53


def test_numbers_are_those_of_the_formula():
    draws = RowDraws(torch.tensor(KEYS))
    for call in (1, 2, 3):
        found = draws.uniform(40, 3).numpy().reshape(len(KEYS), -1)
        assert np.array_equal(found, uniform(KEYS, call, 120))


@pytest.mark.parametrize("name", ["mask", "body.layers.mask"])
def test_a_purpose_has_keys_of_its_own(name):
    crc = zlib.crc32(name.encode())
    keys = mixed(np.asarray(KEYS, np.int64).view(np.uint64), crc).view(np.int64)
    named = RowDraws(torch.tensor(KEYS)).named(name)
    assert named.keys.tolist() == keys.tolist()
    assert np.array_equal(named.uniform(5).numpy(), uniform(keys, 1, 5))


def test_the_first_number_of_splitmix64():
    """With the seed 1234567: as the generator's authors' program prints it."""
    (found,) = mixed(np.array([1234567], np.uint64), 1)
    assert int(found) == 6457827717110365317
