"""Random numbers of the rows of a batch, each row's from a key of its own.

A row has the same numbers in any batch, on any rank and device. They are those of a
counter: number i of a key is a hash of the two, so that nothing has a state and all
rows are drawn at once, with NumPy, on the processor.

Public: `RowDraws`.

Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"
(SplitMix64).
"""

from __future__ import annotations

import math
import zlib
from typing import Self

import numpy as np
import torch
from torch import Tensor

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class RowDraws:
    """Uniform random numbers of rows; each call gives new ones.

    Args:
        keys: int64 [B], of the rows.
        num_frames: int64 [B], frames of each row as it would be alone: what a batch
            has beyond them must not change a draw; None where it has no more.
    """

    def __init__(self, keys: Tensor, num_frames: Tensor | None = None) -> None:
        self.keys, self.num_frames = keys.to("cpu", torch.int64), num_frames
        self._calls = 0

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def at_random(cls, num_rows: int) -> Self:
        """Return draws with keys from torch's CPU generator."""
        return cls(torch.randint(2**62, (num_rows,)))

    def named(self, name: str) -> RowDraws:
        """Return the draws of the same rows for a purpose, from their beginning."""
        keys = _mixed(self.keys.numpy().view(np.uint64), zlib.crc32(name.encode()))
        return RowDraws(torch.from_numpy(keys.view(np.int64)), self.num_frames)

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers in [0, 1).

        Returns:
            float64 [B, *shape]; fewer numbers a row are the first ones of more.
        """
        self._calls += 1
        begin = _mixed(self.keys.numpy().view(np.uint64), self._calls)
        count = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
        found = _mixed(begin[:, None], count)
        # 53 bits: those of a float64's fraction
        numbers = (found >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return torch.from_numpy(numbers.reshape(len(self), *shape))


def _mixed(keys: np.ndarray, number: int | np.ndarray) -> np.ndarray:
    """Hash keys and a number, uint64; sums and products wrap."""
    value = keys + np.asarray(number, np.uint64) * _STEP
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))
