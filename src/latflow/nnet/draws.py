"""Random numbers of the rows of a batch, each row's from its own key.

A row has the same numbers in any batch, on any rank and device. They are those of a
counter: number i of a key is a hash of the two, so that nothing has a state and all
rows are drawn at once, on the device of the keys, for which nobody waits.

Hashes are of 64 bits without sign; torch's int64 has the same sums and products.

Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"
(SplitMix64).
"""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import Self

import torch
from torch import Tensor


def mixed_seed(*values: int | str) -> int:
    """Return a seed below 2^63 that follows from values: a seed, a step, a rank."""
    text = "/".join(map(str, values))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class RowDraws:
    """Uniform random numbers of rows; each call gives new ones.

    Args:
        keys: int64 [B], of the rows, on the device where the numbers are wanted.
        num_frames: int64 [B], frames of each row as it would be alone, on the same
            device: what a batch has beyond them must not change a draw; None where it
            has no more.
    """

    def __init__(self, keys: Tensor, num_frames: Tensor | None = None) -> None:
        self.keys, self.num_frames = keys, num_frames
        self._calls = 0

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def at_random(cls, num_rows: int, device: torch.device) -> Self:
        """Return draws with keys from torch's CPU generator."""
        keys = torch.randint(2**62, (num_rows,))
        return cls(keys.to(device, non_blocking=True))

    def to(self, device: torch.device) -> RowDraws:
        """Return the same numbers on a device."""
        frames = self.num_frames
        return RowDraws(
            self.keys.to(device, non_blocking=True),
            None if frames is None else frames.to(device, non_blocking=True),
        )

    def named(self, name: str) -> RowDraws:
        """Return the draws of the same rows for a purpose, from their beginning."""
        return RowDraws(_mixed(self.keys, zlib.crc32(name.encode())), self.num_frames)

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers in [0, 1).

        Returns:
            float64 [B, *shape]; fewer numbers a row are the first ones of more.
        """
        self._calls += 1
        begin = _mixed(self.keys, self._calls)
        count = torch.arange(1, math.prod(shape) + 1, device=begin.device)
        found = _mixed(begin[:, None], count)
        # 53 bits: those of a float64's fraction
        numbers = _shifted(found, 11).double().mul_(2.0**-53)
        return numbers.view(len(self), *shape)


def _signed(number: int) -> int:
    """Return the int64 that has the bits of a number modulo 2^64."""
    return (number + 2**63) % 2**64 - 2**63


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mixed(keys: Tensor, number: int | Tensor) -> Tensor:
    """Hash keys and a number, int64; sums and products wrap."""
    step = _signed(number * _STEP) if isinstance(number, int) else number * _STEP
    value = keys + step
    value = value.bitwise_xor_(_shifted(value, 30)).mul_(_FIRST)
    value = value.bitwise_xor_(_shifted(value, 27)).mul_(_SECOND)
    return value.bitwise_xor_(_shifted(value, 31))


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift to the right, filling up with zeros whatever the sign."""
    return (value >> bits).bitwise_and_(2 ** (64 - bits) - 1)
