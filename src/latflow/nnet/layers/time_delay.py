"""Time-delay layers and their factorized form."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import (
    Context,
    Layer,
    LayerError,
    Padded,
    Shape,
    windowed,
    zero,
)
from latflow.nnet.layers.convolution import inner, shifted
from latflow.nnet.layers.simple import ACTIVATIONS, MaskedBatchNorm, SemiOrthogonal
from latflow.nnet.options import Activation, NumLayers, Size
from latflow.nnet.streams import Piece
from latflow.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt


class TdnnOptions(Options):
    """Options of `Tdnn`."""

    size: Size
    offsets: Annotated[tuple[int, ...], Field(min_length=1)] = (-1, 0, 1)
    """frames that are looked at"""
    activation: Activation = "relu"
    bias: bool = True
    """add a vector"""


class Tdnn(Layer):
    """An affine map of the frames at given offsets; zeros stand beyond the ends.

    Source: Waibel et al. 1989; Peddinti, Povey & Khudanpur 2015.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    PADS_ZEROS: ClassVar[bool] = True
    OPTIONS = TdnnOptions

    def __init__(self, shape: Shape, options: TdnnOptions) -> None:
        super().__init__(shape)
        self.offsets = tuple(sorted(set(options.offsets)))
        dim = shape.dim * len(self.offsets)
        self.map = nn.Linear(dim, options.size, bias=options.bias)
        self.activation = ACTIVATIONS[options.activation]
        self.shape = Shape(options.size)
        self.context = Context(max(0, -self.offsets[0]), max(0, self.offsets[-1]))

    def forward(self, batch: Padded) -> Padded:
        """Map the frames around each frame."""
        if batch.before is not None:
            frames = inner(batch.values, self.offsets)
            values = self.activation(self.map(frames))
            left, right = max(0, -self.offsets[0]), max(0, self.offsets[-1])
            return batch.consumed(values, left, right)
        frames = shifted(batch.values, self.offsets)
        return batch.with_values(self.activation(self.map(frames)))


class TdnnFOptions(Options):
    """Options of `TdnnF`."""

    size: Size
    bottleneck: PositiveInt
    """numbers between the two factors"""
    time_stride: NonNegativeInt = 1
    """frames between taps; 0: one tap"""
    num_layers: NumLayers = 1
    stride: PositiveInt = 1
    """input frames an output frame, of the stack's last layer"""
    bypass: NonNegativeFloat = 0.66
    """factor of the input in the sum"""
    dropout: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """half the half width of the factor"""


class TdnnF(Layer):
    """A stack of factorized time-delay layers, as Kaldi's `tdnnf-layer`.

    Each: a semi-orthogonal map of frames t - s and t to a bottleneck, an affine map of
    bottleneck frames t and t + s, ReLU, batch normalization, dropout, plus
    `bypass` times the input. The map to the bottleneck has the floating scale; the
    trainer calls `Network.constrain()` after some steps (Kaldi: every fourth or so).

    `dropout` p is Kaldi's continuous one per dimension: in training each number of an
    utterance is scaled by one draw from [1 - 2p, 1 + 2p], the same at all frames.

    Source: Povey et al. 2018; Kaldi `steps/libs/nnet3/xconfig/composite_layers.py`.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    STACK: ClassVar[str | None] = "num_layers"
    OPTIONS = TdnnFOptions

    def __init__(self, shape: Shape, options: TdnnFOptions) -> None:
        super().__init__(shape)
        if options.bypass and shape.dim != options.size:
            sizes = f"size is {options.size}, the input's {shape.dim}"
            raise LayerError(f"bypass needs equal sizes: {sizes}")
        count, reach = options.num_layers, options.time_stride
        dims = [shape.dim, *[options.size] * (count - 1)]
        strides = [1] * (count - 1) + [options.stride]
        self.blocks = nn.ModuleList(
            [TdnnFBlock(*sizes, options) for sizes in zip(dims, strides, strict=True)]
        )
        self.shape = Shape(options.size)
        whole = Context(reach, reach).repeated(count)
        self.context = Context(whole.left, whole.right, options.stride)

    def forward(self, batch: Padded) -> Padded:
        """Run the stack."""
        for block in self.blocks:
            batch = block(batch)
        return batch

    def stream(self, piece: Piece) -> Piece:
        """Run the stack, each layer of which keeps its own frames."""
        for block in self.blocks:
            assert isinstance(block, TdnnFBlock)
            context = Context(block.reach, block.reach, block.stride)
            piece = windowed(block, piece, context, self.shape.dim)
        return piece


class TdnnFBlock(nn.Module):
    """One factorized layer; see `TdnnF`."""

    def __init__(self, dim: int, stride: int, options: TdnnFOptions) -> None:
        super().__init__()
        size, narrow = options.size, options.bottleneck
        self.reach, self.stride = options.time_stride, stride
        taps = 2 if self.reach else 1
        self.bypass, self.dropout = options.bypass, options.dropout
        self.narrow = SemiOrthogonal(dim * taps, narrow)
        self.widen = nn.Linear(narrow * taps, size)
        # Kaldi's batch normalization: no scale or offset of its own, epsilon 0.001
        self.norm = MaskedBatchNorm(size, epsilon=1e-3, affine=False)

    def forward(self, batch: Padded) -> Padded:
        """Map [B, T, D] to [B, T', size]."""
        reach, stride = self.reach, self.stride
        if batch.before is None:
            narrow = self._padded(batch)[:, ::stride]
            result = batch.strided(self.widen(narrow), stride)
            present = batch.values[:, ::stride]
        else:
            first = batch.first_whole(reach, stride)
            wide = self.widen(self._inner(batch.values, first))
            result = batch.consumed(wide, reach, reach, stride)
            present = batch.values[:, first + reach :: stride][:, : wide.shape[1]]
        if not (self.training and self.dropout):
            more = present if self.bypass else None
            values = self.norm.after_relu(
                result.values, result.padding, more, self.bypass
            )
            return result.with_values(values)
        values = self.norm.after_relu(result.values, result.padding)
        draws = torch.rand_like(values[:, :1])
        values = values * (1.0 + 2.0 * self.dropout * (2.0 * draws - 1.0))
        if self.bypass:
            values = torch.add(values, present, alpha=self.bypass)
        return result.with_values(values)

    def _padded(self, batch: Padded) -> Tensor:
        """Return the bottleneck's frames t and t + s, zeros beyond the ends."""
        if not self.reach:
            return self.narrow(batch.values)
        if self._is_observed:
            found = self.narrow(shifted(batch.values, (-self.reach, 0)))
        else:
            before, present = self._halves(batch.values)
            found = present + shifted(before, (-self.reach,))
        # the bottleneck of a padding frame sees the last true one: it must be zeroed
        return shifted(zero(found, batch.padding), (0, self.reach))

    @property
    def _is_observed(self) -> bool:
        """Return whether the optimizer observes: then the narrow map must be called."""
        return self.training and bool(self.narrow._forward_hooks)

    def _halves(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the map to the bottleneck makes of frames as t - s, and as t.

        Both halves of the map see every frame in one product, whose narrow results are
        then shifted and added: less is copied than where wide frames are put side by
        side.
        """
        matrix, size = self.narrow.weight, values.shape[2]
        both = torch.cat((matrix[:, :size], matrix[:, size:]))
        before, present = functional.linear(values, both).chunk(2, 2)
        return before, present

    def _inner(self, values: Tensor, first: int) -> Tensor:
        """Return the bottleneck's frames t and t + s of the frames that are wanted."""
        reach, stride = self.reach, self.stride
        if not reach:
            return self.narrow(values[:, first::stride])
        count = -(-(values.shape[1] - first - 2 * reach) // stride)
        last = first + stride * (count - 1) + 1
        ends = [slice(first + at, last + at, stride) for at in (0, reach)]
        if self._is_observed:
            pairs = self.narrow(torch.cat((values[:, :-reach], values[:, reach:]), 2))
            return torch.cat([pairs[:, frames] for frames in ends], 2)
        before, present = self._halves(values)
        present = present[:, reach:]
        return torch.cat([before[:, at] + present[:, at] for at in ends], 2)
