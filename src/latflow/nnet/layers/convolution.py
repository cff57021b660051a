"""Convolutions, time-delay layers and their factorized form, splicing, pooling."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape, zero
from latflow.nnet.layers.simple import ACTIVATIONS, MaskedBatchNorm, SemiOrthogonal
from latflow.nnet.options import (
    Activation,
    NumLayers,
    PoolOptions,
    Size,
    SubsampleOptions,
)
from latflow.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt


def reach(kernel: int, dilation: int, *, causal: bool) -> tuple[int, int]:
    """Return the frames before and after the present one that a kernel covers."""
    span = (kernel - 1) * dilation
    left = span if causal else (kernel - 1) // 2 * dilation
    return left, span - left


class _TimeOptions(Options):
    """Options of convolutions over time."""

    size: Size
    kernel: PositiveInt = 3
    """frames that the kernel covers"""
    stride: PositiveInt = 1
    """input frames an output frame"""
    dilation: PositiveInt = 1
    """distance of the kernel's frames"""
    causal: bool = False
    """look at no later frame"""
    activation: Activation = "none"


class Conv1dOptions(_TimeOptions):
    """Options of `Conv1d`."""

    groups: PositiveInt = 1
    """groups of numbers kept apart"""


class Conv1d(Layer):
    """Convolution over time; frames beyond the ends count as zeros."""

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    OPTIONS = Conv1dOptions

    def __init__(self, shape: Shape, options: Conv1dOptions) -> None:
        super().__init__(shape)
        size, groups = options.size, options.groups
        if shape.dim % groups or size % groups:
            sizes = f"{shape.dim} and {size}"
            raise LayerError(f"groups must divide input and output size, {sizes}")
        kernel, dilation = options.kernel, options.dilation
        self.stride = options.stride
        self.edges = reach(kernel, dilation, causal=options.causal)
        self.conv = nn.Conv1d(
            shape.dim, size, kernel, self.stride, dilation=dilation, groups=groups
        )
        self.activation = ACTIVATIONS[options.activation]
        self.shape = Shape(size)
        self.context = Context(*self.edges, self.stride)

    def forward(self, batch: Padded) -> Padded:
        """Convolve: [B, T, D] -> [B, ceil(T / stride), size]."""
        if batch.before is not None:
            first = batch.first_whole(self.edges[0], self.stride)
            maps = batch.values[:, first:].transpose(1, 2)
            values = self.activation(self.conv(maps)).transpose(1, 2)
            return batch.consumed(values, *self.edges, self.stride)
        values = functional.pad(batch.values.transpose(1, 2), self.edges)
        values = self.activation(self.conv(values)).transpose(1, 2)
        return batch.strided(values, self.stride)


class Conv2dOptions(_TimeOptions):
    """Options of `Conv2d`."""

    size: PositiveInt
    """maps (channels) that the layer gives"""
    frequency_kernel: PositiveInt = 3
    """frequencies of the kernel"""
    frequency_stride: PositiveInt = 1
    """input frequencies an output frequency"""
    channels: PositiveInt | None = None
    """maps of the input where it does not say (3: static, delta, delta-delta)"""


class Conv2d(Layer):
    """Convolution over time and frequency of the input's maps.

    The numbers of a frame are `[channels, frequencies]`; the output's are
    `[size, ceil(frequencies / frequency_stride)]`. Beyond the edges of time and of
    frequency stand zeros.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    OPTIONS = Conv2dOptions

    def __init__(self, shape: Shape, options: Conv2dOptions) -> None:
        super().__init__(shape)
        self.channels = options.channels or shape.channels
        if shape.dim % self.channels:
            raise LayerError(f"{shape.dim} numbers are not {self.channels} equal maps")
        kernel, dilation = options.kernel, options.dilation
        height, step = options.frequency_kernel, options.frequency_stride
        self.time_edges = reach(kernel, dilation, causal=options.causal)
        self.heights = reach(height, 1, causal=False)
        self.stride = options.stride
        size = options.size
        self.conv = nn.Conv2d(
            self.channels,
            size,
            (kernel, height),
            (self.stride, step),
            dilation=(dilation, 1),
        )
        self.activation = ACTIVATIONS[options.activation]
        frequencies = -(-(shape.dim // self.channels) // step)
        self.shape = Shape(size * frequencies, size)
        self.context = Context(*self.time_edges, self.stride)

    def forward(self, batch: Padded) -> Padded:
        """Convolve: [B, T, C F] -> [B, ceil(T / stride), size F']."""
        values, edges = batch.values, self.time_edges
        if batch.before is not None:
            values = values[:, batch.first_whole(edges[0], self.stride) :]
            edges = (0, 0)
        maps = values.unflatten(2, (self.channels, -1)).transpose(1, 2)
        maps = functional.pad(maps, (*self.heights, *edges))
        # the activation comes last: its backward pass then has frames in one piece
        values = self.activation(self.conv(maps).transpose(1, 2).flatten(2))
        if batch.before is not None:
            return batch.consumed(values, *self.time_edges, self.stride)
        return batch.strided(values, self.stride)


class SpliceOptions(Options):
    """Options of `Splice`."""

    left: NonNegativeInt = 4
    """frames before"""
    right: NonNegativeInt = 4
    """frames after"""
    edges: Literal["repeat", "zeros"] = "repeat"
    """frames beyond the ends"""


class Splice(Layer):
    """Neighbouring frames side by side: x[t - left], ..., x[t + right].

    Beyond the ends stand copies of the first and the last frame (`repeat`, as Kaldi's
    `splice-feats`) or zeros.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[type[Options]] = SpliceOptions

    def __init__(self, shape: Shape, options: SpliceOptions) -> None:
        super().__init__(shape)
        self.left, self.right = options.left, options.right
        self.repeat = options.edges == "repeat"
        self.shape = Shape(shape.dim * (self.left + 1 + self.right))
        self.context = Context(self.left, self.right)

    def forward(self, batch: Padded) -> Padded:
        """Splice: [B, T, D] -> [B, T, (left + 1 + right) D]."""
        offsets = range(-self.left, self.right + 1)
        if batch.before is not None:
            values = inner(batch.values, offsets)
            return batch.consumed(values, self.left, self.right)
        if not self.repeat:
            return batch.with_values(shifted(batch.values, offsets))
        device = batch.values.device
        times = torch.arange(batch.values.shape[1], device=device)
        last = batch.lengths_there()[:, None] - 1
        pieces = []
        for offset in offsets:
            source = (times + offset).clamp(min=0).minimum(last)
            index = source.unsqueeze(2).expand_as(batch.values)
            pieces.append(batch.values.gather(1, index))
        return batch.with_values(torch.cat(pieces, 2))


class WindowOptions(Options):
    """Options of `Window`."""

    size: PositiveInt
    """frames in the window"""


class Window(Splice):
    """`size` frames around the present one side by side, zeros beyond the ends."""

    IS_CAPTURABLE: ClassVar[bool] = True
    OPTIONS: ClassVar[type[Options]] = WindowOptions

    def __init__(self, shape: Shape, options: WindowOptions) -> None:
        left, right = reach(options.size, 1, causal=False)
        super().__init__(shape, SpliceOptions(left=left, right=right, edges="zeros"))


def shifted(values: Tensor, offsets: range | tuple[int, ...]) -> Tensor:
    """Return the frames at several offsets side by side, zeros beyond the ends.

    Args:
        values: [B, T, D].
        offsets: frames; output frame t holds input frames t + offset.

    Returns:
        [B, T, len(offsets) D].
    """
    if tuple(offsets) == (0,):
        return values
    num_frames = values.shape[1]
    before, after = max(0, *(-o for o in offsets)), max(0, *offsets)
    wide = functional.pad(values, (0, 0, before, after))
    pieces = [wide[:, before + o : before + o + num_frames] for o in offsets]
    return torch.cat(pieces, 2)


def inner(values: Tensor, offsets: range | tuple[int, ...]) -> Tensor:
    """Return the frames at several offsets side by side, of frames that have them all.

    Args:
        values: [B, T, D].
        offsets: ascending; also the present frame counts.

    Returns:
        [B, T - left - right, len(offsets) D].
    """
    left, right = max(0, -offsets[0]), max(0, offsets[-1])
    num_frames = values.shape[1] - left - right
    pieces = [values[:, left + o : left + o + num_frames] for o in offsets]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)


class Pool(Layer):
    """The mean or the maximum of `kernel` frames around every `stride`-th frame.

    Frames beyond the ends take no part.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS = PoolOptions

    def __init__(self, shape: Shape, options: PoolOptions) -> None:
        super().__init__(shape)
        self.kernel, self.stride = options.kernel, options.stride
        self.is_mean = options.mode == "mean"
        self.edges = reach(self.kernel, 1, causal=False)
        self.context = Context(*self.edges, self.stride)

    def forward(self, batch: Padded) -> Padded:
        """Pool: [B, T, D] -> [B, ceil(T / stride), D]."""
        values = batch.values.transpose(1, 2)
        if self.is_mean:
            ones = values.new_ones(len(values), 1, values.shape[2])
            if batch.padding is not None:
                ones = ones.masked_fill(batch.padding.transpose(1, 2), 0.0)
            # a window of padding alone counts 0 frames: its value is masked afterwards
            counts = self._means(ones).clamp(min=0.5 / self.kernel)
            pooled = self._means(values) / counts
        else:
            if batch.padding is not None:
                lowest = torch.finfo(values.dtype).min
                values = values.masked_fill(batch.padding.transpose(1, 2), lowest)
            values = functional.pad(values, self.edges, value=-torch.inf)
            pooled = functional.max_pool1d(values, self.kernel, self.stride)
        return batch.strided(pooled.transpose(1, 2), self.stride)

    def _means(self, values: Tensor) -> Tensor:
        """Return sums over the kernel divided by its length, zeros beyond the ends."""
        values = functional.pad(values, self.edges)
        return functional.avg_pool1d(values, self.kernel, self.stride)


class Subsample(Layer):
    """Every `factor`-th frame, the first included."""

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS = SubsampleOptions

    def __init__(self, shape: Shape, options: SubsampleOptions) -> None:
        super().__init__(shape)
        self.factor = options.factor
        self.context = Context(0, 0, self.factor)

    def forward(self, batch: Padded) -> Padded:
        """Take frames: [B, T, D] -> [B, ceil(T / factor), D]."""
        if batch.before is not None:
            first = batch.first_whole(0, self.factor)
            values = batch.values[:, first :: self.factor]
            return batch.consumed(values, 0, 0, self.factor)
        return batch.strided(batch.values[:, :: self.factor], self.factor)


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
        """Tell whether the optimizer looks on: the narrow map has to be called then."""
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
