"""Random warps and masks of the features in training."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from latflow.nnet.draws import RowDraws
from latflow.nnet.layer import Layer, LayerError, Padded, Shape
from latflow.options import (
    Fraction,
    NonNegativeInt,
    Options,
    PositiveInt,
)


class SpecAugmentOptions(Options):
    """Options of `SpecAugment`."""

    size: PositiveInt | None = None
    """features that are changed, the first ones; null for all"""
    time_warp: NonNegativeInt = 0
    """greatest distance, frames, that a frame moves in time; labels stay"""
    frequency_warp: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """greatest share by which frequencies are stretched or compressed"""
    frequency_masks: NonNegativeInt = 2
    """bands an utterance"""
    frequency_width: PositiveInt = 10
    """greatest width, features"""
    frequency_fraction: Fraction = 1.0
    """greatest width as a share of the features"""
    time_masks: NonNegativeInt = 2
    """stretches an utterance"""
    time_width: PositiveInt = 20
    """greatest length, frames"""
    time_fraction: Fraction = 0.2
    """greatest length as a share of the utterance"""
    time_share: Fraction | None = None
    """share of zero frames, in any number of stretches; null for `time_masks`"""


_PARTS = 2**36  # of a cell, in which places are counted
#: Place of the break of `frequency_warp`, as a share of the range.
_BREAK = 0.8


def most_share(time_width: int) -> float:
    """Return the share of frames in stretches that are a frame apart."""
    return (time_width + 1) / (time_width + 3)


class SpecAugment(Layer):
    """Warp time and frequency, and set random bands and stretches of time to zero.

    In training only. Each utterance (or chunk) has its own warp and masks; widths are
    uniform in 0..the greatest. The trainer's draws follow from its seed, the epoch, the
    utterance, the chunk's first frame and the layer's name: batches, their order, ranks
    and devices change none. Zero is the mean of normalized features. Frames stay as
    many as they were. Of features with i-vectors, `size` is the number of the former.

    With `time_warp` a random frame moves, and those between it and the ends move
    evenly; labels of single frames bear some 5 frames. With `frequency_warp` W, bin f
    is taken from place a f, with a uniform in 1 - W .. 1 + W, as if the vocal tract had
    another length; above a break the rest is squeezed or spread, so that the last bin
    stays. Neighbouring numbers must be neighbouring frequencies (log-mel features).
    With `time_share`, stretches of 1..`time_width` frames lie all along the utterance,
    so far apart that this share of the frames is zero on average; `time_masks` and
    `time_fraction` do nothing then.

    Kaldi's SpecAugment of 40 mel features is `frequency_masks: 1`,
    `frequency_width: 20`, `time_share: 0.2`, `time_width: 20`.

    Source: Park et al. 2019, section 2; Kaldi `nnet3/nnet-general-component.cc`,
    `SpecAugmentTimeMaskComponent` (for `time_share`); Jaitly & Hinton 2013, "Vocal
    tract length perturbation (VTLP) improves speech recognition" (`frequency_warp`).

    Attributes:
        draws: random numbers of the batch to come, set by the network; None for keys
            from torch's generator.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    USES_CONTEXT: ClassVar[bool] = True
    OPTIONS = SpecAugmentOptions

    def __init__(self, shape: Shape, options: SpecAugmentOptions) -> None:
        super().__init__(shape)
        self.options = options
        self.draws: RowDraws | None = None
        most = most_share(options.time_width)
        if options.time_share is not None and options.time_share > most:
            raise LayerError(
                f"time_share is {most:.2f} at most where time_width is "
                f"{options.time_width}"
            )

    def forward(self, batch: Padded) -> Padded:
        """Warp and mask (in training)."""
        if not self.training:
            return batch
        draws = self.draws
        if draws is None:
            draws = RowDraws.at_random(len(batch.values), batch.values.device)
        lengths = batch.lengths_there()
        if draws.num_frames is not None:
            lengths = lengths.minimum(draws.num_frames)
        values = rest = batch.values
        if self.options.size is not None:
            values, rest = values.tensor_split([self.options.size], dim=2)
        if self.options.time_warp:
            values = self._warped(values, lengths, draws)
        if self.options.frequency_warp:
            greatest = self.options.frequency_warp
            source = warped_bins(values.shape[2], greatest, draws)
            values = _interpolated(values, source)
        masked = self._bands(values, draws)[:, None, :]
        masked = masked | self._stretches(values, lengths, draws)[:, :, None]
        values = values.masked_fill(masked, 0.0)
        if self.options.size is not None:
            values = torch.cat((values, rest), dim=2)
        return batch.with_values(values)

    def _warped(self, values: Tensor, lengths: Tensor, draws: RowDraws) -> Tensor:
        """Return the frames at warped times, [B, T, D]."""
        greatest = self.options.time_warp
        source = warped_times(lengths, greatest, values.shape[1], draws)
        before = source.floor()
        share = (source - before).to(values.dtype)[:, :, None]
        # beyond the last frame the share is zero
        last = (lengths - 1)[:, None]
        first, second = (
            values.gather(1, at[:, :, None].expand(-1, -1, values.shape[2]))
            for at in (before.long(), torch.minimum(before.long() + 1, last))
        )
        times = torch.arange(values.shape[1], device=values.device)
        warped = torch.lerp(first, second, share)
        return torch.where((times < lengths[:, None])[:, :, None], warped, values)

    def _bands(self, values: Tensor, draws: RowDraws) -> Tensor:
        """Mark features to be zero, bool [B, D]."""
        options, dim = self.options, values.shape[2]
        widest = min(options.frequency_width, int(dim * options.frequency_fraction))
        sizes = torch.full((len(draws),), dim, device=values.device)
        most = torch.full_like(sizes, min(widest, dim))
        return random_spans(sizes, most, options.frequency_masks, dim, draws)

    def _stretches(self, values: Tensor, lengths: Tensor, draws: RowDraws) -> Tensor:
        """Mark frames to be zero, bool [B, T]."""
        options, num_frames = self.options, values.shape[1]
        if options.time_share is not None:
            return spread_spans(
                num_frames, options.time_width, options.time_share, draws
            )
        longest = (lengths * options.time_fraction).long()
        return random_spans(
            lengths,
            longest.clamp(max=options.time_width),
            options.time_masks,
            num_frames,
            draws,
        )


def warped_times(lengths: Tensor, greatest: int, total: int, draws: RowDraws) -> Tensor:
    """Draw a warp of time for each row.

    A frame c, uniform in W + 1 .. T - 2 - W, moves to c + w, with w uniform in -W .. W;
    the first and the last frame stay, and time between these three is linear. W is
    `greatest`, or less in rows so short that c would have no place.

    Args:
        lengths: int64 [B], frames of each row, T, on the device of the draws.
        greatest: W, frames.
        total: cells of the result's rows.
        draws: of the rows.

    Returns:
        float64 [B, total]: the time that the frame at each new place is taken from, in
        0 .. T - 1.
    """
    last = (lengths - 1).double()[:, None]
    drawn = draws.uniform(2)
    most = ((lengths - 4) // 2).clamp(min=0, max=greatest).double()[:, None]
    center = most + 1 + drawn[:, :1] * (last - 2 * most - 2).clamp(min=0)
    moved = center + most * (2 * drawn[:, 1:] - 1)
    time = torch.arange(total, dtype=torch.float64, device=last.device)
    before = time * center / moved
    after = center + (time - moved) * (last - center) / (last - moved)
    source = torch.where(time < moved, before, after)
    is_still = (most == 0) | (time > last)
    return torch.where(is_still, time, source).minimum(last).clamp(min=0)


def warped_bins(dim: int, greatest: float, draws: RowDraws) -> Tensor:
    """Draw a warp of frequency for each row.

    Bins below a break are taken from `a` times their place, a uniform in
    1 - W .. 1 + W, those above linearly up to the last one. The break is where the
    higher one of a bin and its source is `_BREAK` of the range.

    Args:
        dim: D, at least 2.
        greatest: W, below 1.
        draws: of the rows.

    Returns:
        float64 [B, D]: the place that each bin is taken from, in 0 .. D - 1.
    """
    factor = 1.0 + greatest * (2.0 * draws.uniform(1) - 1.0)
    last = dim - 1
    bins = torch.arange(dim, dtype=torch.float64, device=factor.device)
    edge = _BREAK * last / factor.clamp(min=1.0)
    above = last - (last - bins) * (last - factor * edge) / (last - edge)
    return torch.where(bins <= edge, factor * bins, above).clamp(0, last)


def _interpolated(values: Tensor, source: Tensor) -> Tensor:
    """Take features [B, T, D] at places float64 [B, D], linearly between bins."""
    below = source.floor().clamp(max=max(values.shape[2] - 2, 0))
    share = (source - below).to(values.dtype)[:, None, :]
    first = below.long()[:, None, :].expand_as(values)
    second = (first + 1).clamp(max=values.shape[2] - 1)
    return torch.lerp(values.gather(2, first), values.gather(2, second), share)


def random_spans(
    sizes: Tensor, widest: Tensor, count: int, total: int, draws: RowDraws
) -> Tensor:
    """Mark `count` random spans in each row.

    Args:
        sizes: int64 [B], cells of each row that spans may cover, on the device of the
            draws.
        widest: int64 [B], greatest width of a span; at most `sizes`.
        count: spans a row; they may overlap.
        total: cells of the result's rows.
        draws: of the rows.

    Returns:
        bool [B, total].
    """
    drawn = draws.uniform(count, 2)
    # a product may round up: the minimum keeps the greatest value itself
    width = (drawn[..., 0] * (widest[:, None] + 1)).long().minimum(widest[:, None])
    free = sizes[:, None] - width
    begin = (drawn[..., 1] * (free + 1)).long().minimum(free)
    cells = torch.arange(total, device=drawn.device)
    inside = (cells >= begin[..., None]) & (cells < (begin + width)[..., None])
    return inside.any(1)


def spread_spans(total: int, widest: int, share: float, draws: RowDraws) -> Tensor:
    """Mark spans all along each row, so that they cover a share of it on average.

    Spans have widths uniform in 1..`widest`; between two of them lie at least one cell
    and as many on average as the share wants (uniform).

    Args:
        total: cells of a row.
        widest: greatest width of a span.
        share: of the cells, at most `most_share(widest)`.
        draws: of the rows.

    Returns:
        bool [B, total].
    """
    device = draws.keys.device
    if not share:
        return torch.zeros(len(draws), total, dtype=torch.bool, device=device)
    mean_gap = (widest + 1) / 2 * (1 - share) / share
    # some cycles before the row begins, so that no place of it is preferred
    ahead = 8 * (widest + 2 * mean_gap)
    count = int((total + 2 * ahead) / 2) + 1  # a span and a gap are two cells at least
    drawn = draws.uniform(count, 2)
    offset = drawn[:, :1, 0] * (ahead / 4)
    width = (drawn[:, 1:, 0] * widest).floor().clamp(max=widest - 1) + 1
    gap = 1 + drawn[:, 1:, 1] * 2 * (mean_gap - 1)
    # in whole parts of a cell: sums are the same in any order, as a GPU may have it
    cycle, width, before = (
        (part * _PARTS).long() for part in (width + gap, width, ahead + offset)
    )
    end = cycle.cumsum(1) - before
    # a cell is covered where more spans begin before its end than end
    cells = torch.arange(1, total + 1, device=device) * _PARTS
    cells = cells.expand(len(draws), -1).contiguous()
    begun, ended = (torch.searchsorted(edge, cells) for edge in (end - width, end))
    return begun > ended
