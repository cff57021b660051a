"""Convolutions, splicing, pooling."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.nnet.layers.simple import ACTIVATIONS
from latflow.nnet.options import Activation, PoolOptions, Size, SubsampleOptions
from latflow.options import NonNegativeInt, Options, PositiveInt


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
    PADS_ZEROS: ClassVar[bool] = True
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
    PADS_ZEROS: ClassVar[bool] = True
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
    PADS_ZEROS: ClassVar[bool] = True
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
    PADS_ZEROS: ClassVar[bool] = True
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
