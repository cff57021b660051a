"""Time-delay layers and their factorised form."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, LayerError, Options, Shape
from latflow.nnet.layers.convolution import shifted
from latflow.nnet.layers.semi_orthogonal import SemiOrthogonal
from latflow.nnet.layers.simple import (
    ACTIVATIONS,
    MaskedBatchNorm,
    activation_option,
    size_option,
)
from latflow.nnet.options import Option, OptionTable
from latflow.nnet.padded import Padded, zero


class Tdnn(Layer):
    """An affine map of the frames at given offsets; zeros stand beyond the ends.

    Source: Waibel et al. 1989; Peddinti, Povey & Khudanpur 2015.
    """

    OPTIONS: ClassVar[OptionTable] = {
        "size": size_option(),
        "offsets": Option("ints", "frames that are looked at", (-1, 0, 1)),
        "activation": activation_option("relu"),
        "bias": Option("bool", "add a vector", default=True),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.offsets = tuple(sorted(set(options["offsets"])))
        dim = shape.dim * len(self.offsets)
        self.map = nn.Linear(dim, options["size"], bias=options["bias"])
        self.activation = ACTIVATIONS[options["activation"]]
        self.shape = Shape(options["size"])
        self.context = Context(max(0, -self.offsets[0]), max(0, self.offsets[-1]))

    def forward(self, batch: Padded) -> Padded:
        """Map the frames around each frame."""
        frames = shifted(batch.values, self.offsets)
        return batch.with_values(self.activation(self.map(frames)))


class TdnnF(Layer):
    """A stack of factorised time-delay layers, as Kaldi's `tdnnf-layer`.

    Each: a semi-orthogonal map of frames t - s and t to a bottleneck, an affine map of
    bottleneck frames t and t + s, ReLU, batch normalisation, dropout, plus
    `bypass` times the input. The map to the bottleneck has the floating scale; the
    trainer calls `Network.constrain()` after some steps (Kaldi: every fourth or so).

    `dropout` p is Kaldi's continuous one per dimension: in training each number of an
    utterance is scaled by one draw from [1 - 2p, 1 + 2p], the same at all frames.

    Source: Povey et al. 2018; Kaldi `steps/libs/nnet3/xconfig/composite_layers.py`.
    """

    STACK: ClassVar[str | None] = "num_layers"
    OPTIONS: ClassVar[OptionTable] = {
        "size": size_option(),
        "bottleneck": Option("int", "numbers between the two factors", minimum=1),
        "time_stride": Option("int", "frames between taps; 0: one tap", 1, minimum=0),
        "num_layers": Option("int", "layers in the stack", 1, minimum=1),
        "bypass": Option("float", "factor of the input in the sum", 0.66, 0.0),
        "dropout": Option("float", "half the half width of the factor", 0.0, 0.0, 0.5),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        if options["bypass"] and shape.dim != options["size"]:
            sizes = f"size is {options['size']}, the input's {shape.dim}"
            raise LayerError(f"bypass needs equal sizes: {sizes}")
        dims = [shape.dim, *[options["size"]] * (options["num_layers"] - 1)]
        self.blocks = nn.ModuleList([_TdnnFBlock(dim, options) for dim in dims])
        self.shape = Shape(options["size"])
        stride = options["time_stride"]
        self.context = Context(stride, stride).repeated(options["num_layers"])

    def forward(self, batch: Padded) -> Padded:
        """Run the stack."""
        for block in self.blocks:
            batch = batch.with_values(block(batch.values, batch.padding))
        return batch


class _TdnnFBlock(nn.Module):
    """One factorised layer; see `TdnnF`."""

    def __init__(self, dim: int, options: Options) -> None:
        super().__init__()
        size, narrow = options["size"], options["bottleneck"]
        stride = options["time_stride"]
        self.before = (-stride, 0) if stride else (0,)
        self.after = (0, stride) if stride else (0,)
        self.bypass, self.dropout = options["bypass"], options["dropout"]
        self.narrow = SemiOrthogonal(dim * len(self.before), narrow)
        self.widen = nn.Linear(narrow * len(self.after), size)
        # Kaldi's batch normalisation: no scale or offset of its own, epsilon 0.001
        self.norm = MaskedBatchNorm(size, epsilon=1e-3, affine=False)

    def forward(self, values: Tensor, padding: Tensor | None) -> Tensor:
        """Map [B, T, D] to [B, T, size]."""
        # the bottleneck of a padding frame sees the last true one: it must be zeroed
        narrow = zero(self.narrow(shifted(values, self.before)), padding)
        wide = functional.relu(self.widen(shifted(narrow, self.after)))
        result = self.norm(wide, padding)
        if self.training and self.dropout:
            draws = torch.rand_like(result[:, :1])
            result = result * (1.0 + 2.0 * self.dropout * (2.0 * draws - 1.0))
        return result + self.bypass * values if self.bypass else result
