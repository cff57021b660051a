"""Convolutions over time and frequency, splicing, pooling and subsampling."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, LayerError, Options, Shape
from latflow.nnet.layers.simple import ACTIVATIONS, activation_option, size_option
from latflow.nnet.options import Option, OptionTable
from latflow.nnet.padded import Padded


def reach(kernel: int, dilation: int, *, causal: bool) -> tuple[int, int]:
    """Frames before and after the present one that a kernel covers."""
    span = (kernel - 1) * dilation
    left = span if causal else (kernel - 1) // 2 * dilation
    return left, span - left


_TIME_OPTIONS = {
    "kernel": Option("int", "frames that the kernel covers", 3, minimum=1),
    "stride": Option("int", "input frames an output frame", 1, minimum=1),
    "dilation": Option("int", "distance of the kernel's frames", 1, minimum=1),
    "causal": Option("bool", "look at no later frame", default=False),
    "activation": activation_option(),
}


class Conv1d(Layer):
    """Convolution over time; frames beyond the ends count as zeros."""

    OPTIONS: ClassVar[OptionTable] = {
        "size": size_option(),
        **_TIME_OPTIONS,
        "groups": Option("int", "groups of numbers kept apart", 1, minimum=1),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        size, groups = options["size"], options["groups"]
        if shape.dim % groups or size % groups:
            sizes = f"{shape.dim} and {size}"
            raise LayerError(f"groups must divide input and output size, {sizes}")
        kernel, dilation = options["kernel"], options["dilation"]
        self.stride = options["stride"]
        self.edges = reach(kernel, dilation, causal=options["causal"])
        self.conv = nn.Conv1d(
            shape.dim, size, kernel, self.stride, dilation=dilation, groups=groups
        )
        self.activation = ACTIVATIONS[options["activation"]]
        self.shape = Shape(size)
        self.context = Context(*self.edges, self.stride)

    def forward(self, batch: Padded) -> Padded:
        """Convolve: [B, T, D] -> [B, ceil(T / stride), size]."""
        values = functional.pad(batch.values.transpose(1, 2), self.edges)
        values = self.activation(self.conv(values)).transpose(1, 2)
        return batch.strided(values, self.stride)


class Conv2d(Layer):
    """Convolution over time and frequency of the input's maps.

    The numbers of a frame are `[channels, frequencies]`; the output's are
    `[size, ceil(frequencies / frequency_stride)]`. Beyond the edges of time and of
    frequency stand zeros.
    """

    OPTIONS: ClassVar[OptionTable] = {
        "size": Option("int", "maps (channels) that the layer gives", minimum=1),
        **_TIME_OPTIONS,
        "frequency_kernel": Option("int", "frequencies of the kernel", 3, minimum=1),
        "frequency_stride": Option(
            "int", "input frequencies an output frequency", 1, minimum=1
        ),
        "channels": Option(
            "int",
            "maps of the input where it does not say (3: static, delta, delta-delta)",
            None,
            minimum=1,
            nullable=True,
        ),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.channels = options["channels"] or shape.channels
        if shape.dim % self.channels:
            raise LayerError(f"{shape.dim} numbers are not {self.channels} equal maps")
        kernel, dilation = options["kernel"], options["dilation"]
        height, step = options["frequency_kernel"], options["frequency_stride"]
        time_edges = reach(kernel, dilation, causal=options["causal"])
        self.edges = (*reach(height, 1, causal=False), *time_edges)
        self.stride = options["stride"]
        size = options["size"]
        self.conv = nn.Conv2d(
            self.channels,
            size,
            (kernel, height),
            (self.stride, step),
            dilation=(dilation, 1),
        )
        self.activation = ACTIVATIONS[options["activation"]]
        frequencies = -(-(shape.dim // self.channels) // step)
        self.shape = Shape(size * frequencies, size)
        self.context = Context(*time_edges, self.stride)

    def forward(self, batch: Padded) -> Padded:
        """Convolve: [B, T, C F] -> [B, ceil(T / stride), size F']."""
        maps = batch.values.unflatten(2, (self.channels, -1)).transpose(1, 2)
        maps = self.activation(self.conv(functional.pad(maps, self.edges)))
        return batch.strided(maps.transpose(1, 2).flatten(2), self.stride)


class Splice(Layer):
    """Neighbouring frames side by side: x[t - left], ..., x[t + right].

    Beyond the ends stand copies of the first and the last frame (`repeat`, as Kaldi's
    `splice-feats`) or zeros.
    """

    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[OptionTable] = {
        "left": Option("int", "frames before", 4, minimum=0),
        "right": Option("int", "frames after", 4, minimum=0),
        "edges": Option(
            "str", "frames beyond the ends", "repeat", choices=("repeat", "zeros")
        ),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.left, self.right = options["left"], options["right"]
        self.repeat = options["edges"] == "repeat"
        self.shape = Shape(shape.dim * (self.left + 1 + self.right))
        self.context = Context(self.left, self.right)

    def forward(self, batch: Padded) -> Padded:
        """Splice: [B, T, D] -> [B, T, (left + 1 + right) D]."""
        offsets = range(-self.left, self.right + 1)
        if not self.repeat:
            return batch.with_values(shifted(batch.values, offsets))
        device = batch.values.device
        times = torch.arange(batch.values.shape[1], device=device)
        last = batch.lengths.to(device)[:, None] - 1
        pieces = []
        for offset in offsets:
            source = (times + offset).clamp(min=0).minimum(last)
            index = source.unsqueeze(2).expand_as(batch.values)
            pieces.append(batch.values.gather(1, index))
        return batch.with_values(torch.cat(pieces, 2))


class Window(Splice):
    """`size` frames around the present one side by side, zeros beyond the ends."""

    OPTIONS: ClassVar[OptionTable] = {
        "size": Option("int", "frames in the window", minimum=1)
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        left, right = reach(options["size"], 1, causal=False)
        super().__init__(shape, {"left": left, "right": right, "edges": "zeros"})


def shifted(values: Tensor, offsets: range | tuple[int, ...]) -> Tensor:
    """Frames at several offsets side by side, zeros beyond the ends.

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


class Pool(Layer):
    """The mean or the maximum of `kernel` frames around every `stride`-th frame.

    Frames beyond the ends take no part.
    """

    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[OptionTable] = {
        "mode": Option("str", "what is taken", "max", choices=("max", "mean")),
        "kernel": Option("int", "frames taken together", 2, minimum=1),
        "stride": Option("int", "input frames an output frame", 2, minimum=1),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.kernel, self.stride = options["kernel"], options["stride"]
        self.is_mean = options["mode"] == "mean"
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
        """Sums over the kernel divided by its length, zeros beyond the ends."""
        values = functional.pad(values, self.edges)
        return functional.avg_pool1d(values, self.kernel, self.stride)


class Subsample(Layer):
    """Every `factor`-th frame, the first included."""

    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[OptionTable] = {
        "factor": Option("int", "input frames an output frame", 3, minimum=1)
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.factor = options["factor"]
        self.context = Context(0, 0, self.factor)

    def forward(self, batch: Padded) -> Padded:
        """Take frames: [B, T, D] -> [B, ceil(T / factor), D]."""
        return batch.strided(batch.values[:, :: self.factor], self.factor)
