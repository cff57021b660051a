"""Random masks on the features in training."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from latflow.nnet.layer import Layer, Options, Shape
from latflow.nnet.options import Option, OptionTable
from latflow.nnet.padded import Padded


class SpecAugment(Layer):
    """Set random bands of frequencies and stretches of time to zero, in training.

    Each utterance has its own masks; their widths are uniform in 0..the greatest. Draws
    come from torch's CPU generator and depend on neither device nor padding. Zero is
    the mean of normalised features. Evaluation changes nothing.

    Source: Park et al. 2019, section 2 (without time warping).
    """

    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[OptionTable] = {
        "frequency_masks": Option("int", "bands an utterance", 2, minimum=0),
        "frequency_width": Option("int", "greatest width, features", 10, minimum=1),
        "time_masks": Option("int", "stretches an utterance", 2, minimum=0),
        "time_width": Option("int", "greatest length, frames", 20, minimum=1),
        "time_fraction": Option(
            "float", "greatest length as a share of the utterance", 0.2, 0.0, 1.0
        ),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.options = dict(options)

    def forward(self, batch: Padded) -> Padded:
        """Mask (in training)."""
        if not self.training:
            return batch
        options, lengths = self.options, batch.lengths
        _, num_frames, dim = batch.values.shape
        dims = torch.full_like(lengths, dim)
        bands = random_spans(
            dims,
            dims.clamp(max=options["frequency_width"]),
            options["frequency_masks"],
            dim,
        )
        longest = (lengths * options["time_fraction"]).long()
        stretches = random_spans(
            lengths,
            longest.clamp(max=options["time_width"]),
            options["time_masks"],
            num_frames,
        )
        masked = bands[:, None, :] | stretches[:, :, None]
        values = batch.values.masked_fill(masked.to(batch.values.device), 0.0)
        return batch.with_values(values)


def random_spans(sizes: Tensor, widest: Tensor, count: int, total: int) -> Tensor:
    """Mark `count` random spans in each row.

    Args:
        sizes: int64 [B], cells of each row that spans may cover.
        widest: int64 [B], greatest width of a span; at most `sizes`.
        count: spans a row; they may overlap.
        total: cells of the result's rows.

    Returns:
        bool [B, total].
    """
    draws = torch.rand(len(sizes), count, 2)
    # rand() is below 1 and float32 rounds: the minimum keeps the greatest value itself
    width = (draws[..., 0] * (widest[:, None] + 1)).long().minimum(widest[:, None])
    room = sizes[:, None] - width
    begin = (draws[..., 1] * (room + 1)).long().minimum(room)
    cells = torch.arange(total)
    inside = (cells >= begin[..., None]) & (cells < (begin + width)[..., None])
    return inside.any(1)
