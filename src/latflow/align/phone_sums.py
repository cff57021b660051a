"""Numbers of phones of a corpus: how many, their mean and their spread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Number, mean and variance of the values of a phone.

    Attributes:
        number: how many.
        mean: of them.
        variance: of them, divided by their count; 0 or above.
    """

    number: int
    mean: float
    variance: float


class PhoneSums:
    """Adds numbers up by phone, and of all phones."""

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}  # count, sum, sum of squares
        self._all = np.zeros(3)

    def add(self, phone: str, value: float) -> None:
        """Take note of a number of a phone."""
        own = (1.0, value, value * value)
        sums = self._sums.setdefault(phone, np.zeros(3))
        sums += own
        self._all += own

    def of(self, phone: str) -> Spread:
        """Return the spread of a phone; of 0 numbers where it does not occur."""
        return _spread(self._sums.get(phone, np.zeros(3)))

    def of_all(self) -> Spread:
        """Return the spread of all phones."""
        return _spread(self._all)


def _spread(sums: np.ndarray) -> Spread:
    """Return the spread of count, sum and sum of squares, float64[3]."""
    count, total, squares = sums.tolist()
    if not count:
        return Spread(0, 0.0, 0.0)
    mean = total / count
    return Spread(int(count), mean, max(squares / count - mean * mean, 0.0))
