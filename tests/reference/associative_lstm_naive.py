"""Associative LSTM with Python's complex numbers: the twin of `AssociativeLstm`."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def associative_lstm(layer, values: Tensor) -> Tensor:
    """Run over one sequence [T, D]; returns [T, size]."""
    n = layer.width
    permutations = layer.permutations.tolist()
    memory = [[0j] * n for _ in permutations]
    state = values.new_zeros(2 * n)
    rows = []
    for frame in values:
        given = frame @ layer.input + state @ layer.recurrent + layer.bias
        given = given.tolist()

        def gate(number, given=given):
            part = given[number * n : (number + 1) * n]
            return [1 / (1 + math.exp(-x)) for x in part]

        def key(number, given=given):
            first = (3 + 2 * number) * n
            pairs = zip(
                given[first : first + n], given[first + n : first + 2 * n], strict=True
            )
            return [bounded(complex(*pair)) for pair in pairs]

        entering, forget, leaving = gate(0), gate(1), gate(2)
        value, write, read = key(0), key(1), key(2)
        found = [0j] * n
        for copy, places in zip(memory, permutations, strict=True):
            for k in range(n):
                added = write[places[k]] * entering[k] * value[k]
                copy[k] = forget[k] * copy[k] + added
                found[k] += read[places[k]] * copy[k] / len(memory)
        found = [leaving[k] * bounded(found[k]) for k in range(n)]
        rows.append([x.real for x in found] + [x.imag for x in found])
        state = values.new_tensor(rows[-1])
    return torch.tensor(rows, dtype=values.dtype)


def bounded(number: complex) -> complex:
    """Shorten a number to an absolute value of 1 at most."""
    return number / max(1.0, abs(number))
