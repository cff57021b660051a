"""Sequences of unequal lengths in a batch, and the rule that keeps padding harmless.

The rule: **values beyond a sequence's end are zero between any two layers**. A sequence
alone sees zeros beyond its end (convolutions pad with zeros), so a convolution needs no
mask; layers that mix frames otherwise (recurrent, attention, batch statistics) use
`lengths` or `padding`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Padded:
    """Sequences of frames, padded with zeros to a common length.

    Attributes:
        values: [B, T, D].
        lengths: int64 [B], frames of each sequence, 1 <= length <= T, on the CPU.
        padding: bool [B, T, 1] on the device of `values`, true beyond the end; None
            where no sequence is shorter than T, which saves all the masking.
    """

    values: Tensor
    lengths: Tensor
    padding: Tensor | None

    @staticmethod
    def of(values: Tensor, lengths: Tensor) -> Padded:
        """Make a batch; what stands beyond the ends (even NaN) becomes zero.

        Args:
            values: [B, T, D].
            lengths: integers [B], on any device.

        Raises:
            ValueError: shapes that do not fit, or a length outside 1..T.
        """
        lengths = lengths.to("cpu", torch.int64)
        if values.ndim != 3 or lengths.shape != values.shape[:1]:
            shapes = f"{tuple(values.shape)}, {tuple(lengths.shape)}"
            raise ValueError(f"need values [B, T, D] and lengths [B], not {shapes}")
        num_frames = values.shape[1]
        if not bool(((lengths >= 1) & (lengths <= num_frames)).all()):
            raise ValueError(f"lengths must be in 1..{num_frames}: {lengths.tolist()}")
        batch = Padded(values, lengths, padding_of(lengths, num_frames, values.device))
        return batch.with_values(values)

    def with_values(self, values: Tensor) -> Padded:
        """The same time axis with other values [B, T, D']; padding becomes zero."""
        return Padded(zero(values, self.padding), self.lengths, self.padding)

    def strided(self, values: Tensor, stride: int) -> Padded:
        """Every `stride`-th frame of this time axis, with the values made for them.

        Args:
            values: [B, ceil(T / stride), D'].
            stride: >= 1.
        """
        if stride == 1:
            return self.with_values(values)
        lengths = (self.lengths + stride - 1) // stride
        padding = padding_of(lengths, values.shape[1], values.device)
        return Padded(zero(values, padding), lengths, padding)


def padding_of(lengths: Tensor, num_frames: int, device: torch.device) -> Tensor | None:
    """Mark the frames beyond each sequence's end: bool [B, T, 1], None if none is."""
    if bool((lengths == num_frames).all()):
        return None
    times = torch.arange(num_frames, device=device)
    return (times[None, :] >= lengths.to(device)[:, None]).unsqueeze(2)


def zero(values: Tensor, padding: Tensor | None) -> Tensor:
    """Set values [B, T, D] to zero where `padding` [B, T, 1] says."""
    return values if padding is None else values.masked_fill(padding, 0.0)
