"""Layers that treat each frame by itself, and the joining of several inputs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Layer, LayerError, Options, Shape
from latflow.nnet.layers.semi_orthogonal import SemiOrthogonal
from latflow.nnet.options import Option, OptionTable
from latflow.nnet.padded import Padded


def _same(values: Tensor) -> Tensor:
    return values


def _log_softmax(values: Tensor) -> Tensor:
    return functional.log_softmax(values, -1)


ACTIVATIONS = {
    "none": _same,
    "relu": functional.relu,
    "leaky_relu": functional.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "log_softmax": _log_softmax,
}


def activation_option(default: str = "none") -> Option:
    """The option of layers that end with a non-linear function."""
    return Option("str", "function of the result", default, choices=tuple(ACTIVATIONS))


def size_option() -> Option:
    """The option of layers whose output size is free."""
    return Option("int", "numbers a frame that the layer gives", minimum=1)


def dropout_option() -> Option:
    """The option of layers with dropout inside."""
    return Option("float", "share of numbers set to zero in training", 0.0, 0.0, 0.99)


class Linear(Layer):
    """An affine map of each frame, y = f(W x + b).

    As `output` it has a loss, and `size` is the number of classes of its target.
    A semi-orthogonal one has W W^T = s^2 I, s free, kept so by `Network.constrain()`,
    and no b: Kaldi's `linear-component` with `orthonormal-constraint=-1`.
    """

    OPTIONS: ClassVar[OptionTable] = {
        "size": size_option(),
        "activation": activation_option(),
        "bias": Option("bool", "add the vector b", default=True),
        "semi_orthogonal": Option(
            "bool", "hold W semi-orthogonal (needs bias: false)", default=False
        ),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        size = options["size"]
        if options["semi_orthogonal"]:
            if options["bias"]:
                raise LayerError("semi_orthogonal needs bias: false")
            self.map = SemiOrthogonal(shape.dim, size)
        else:
            self.map = nn.Linear(shape.dim, size, bias=options["bias"])
        self.activation = ACTIVATIONS[options["activation"]]
        self.shape = Shape(options["size"])

    def forward(self, batch: Padded) -> Padded:
        """Map each frame."""
        return batch.with_values(self.activation(self.map(batch.values)))


class Activation(Layer):
    """A non-linear function of each number."""

    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[OptionTable] = {
        "function": Option("str", "the function", choices=tuple(ACTIVATIONS)),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.function = ACTIVATIONS[options["function"]]

    def forward(self, batch: Padded) -> Padded:
        """Apply the function."""
        return batch.with_values(self.function(batch.values))


class Dropout(Layer):
    """Set a share of the numbers to zero in training and scale up the others."""

    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[OptionTable] = {
        "rate": Option("float", "share of numbers set to zero", 0.1, 0.0, 0.99),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.dropout = nn.Dropout(options["rate"])

    def forward(self, batch: Padded) -> Padded:
        """Drop numbers (in training)."""
        return batch.with_values(self.dropout(batch.values))


class LayerNorm(Layer):
    """Give each frame mean 0 and variance 1, then a learnt scale and offset."""

    IS_DEEP: ClassVar[bool] = False

    def __init__(self, shape: Shape, options: Options) -> None:  # noqa: ARG002
        super().__init__(shape)
        self.norm = nn.LayerNorm(shape.dim)

    def forward(self, batch: Padded) -> Padded:
        """Normalise each frame."""
        return batch.with_values(self.norm(batch.values))


class Concat(Layer):
    """The inputs side by side: [B, T, D1 + D2 + ...]."""

    IS_DEEP: ClassVar[bool] = False

    def __init__(self, shape: Shape, options: Options) -> None:  # noqa: ARG002
        super().__init__(shape)

    def forward(self, batch: Padded) -> Padded:
        """Return the joined inputs."""
        return batch


class Add(Concat):
    """The sum of inputs of equal size."""

    COMBINE: ClassVar[str] = "add"


class MaskedBatchNorm(nn.Module):
    """Batch normalisation whose statistics are of the true frames alone.

    Training uses mean and (biased) variance over the batch's frames without padding and
    moves the running ones towards them; evaluation uses the running ones. torch's
    `BatchNorm1d` would count the zeros of the padding.

    Args:
        dim: numbers a frame.
        momentum: step of the running mean and variance towards a batch's.
        epsilon: added to the variance.
        affine: learn a scale and an offset; Kaldi's batch normalisation has none.
    """

    mean: Tensor
    variance: Tensor

    def __init__(
        self,
        dim: int,
        *,
        momentum: float = 0.1,
        epsilon: float = 1e-5,
        affine: bool = True,
    ) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.scale = nn.Parameter(torch.ones(dim)) if affine else None
        self.offset = nn.Parameter(torch.zeros(dim)) if affine else None
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, values: Tensor, padding: Tensor | None) -> Tensor:
        """Normalise values [B, T, D]; `padding` is [B, T, 1] or None."""
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance, count = moments(values, padding)
            self._follow(mean.detach(), variance.detach(), count)
        scale = torch.rsqrt(variance + self.epsilon)
        if self.scale is not None:
            scale = scale * self.scale
        centred = (values - mean) * scale
        return centred if self.offset is None else centred + self.offset

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics; the variance in its unbiased form, as torch."""
        self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
        unbiased = variance.to(self.mean.dtype) * (count / (count - 1).clamp(min=1))
        self.variance.lerp_(unbiased, self.momentum)


def moments(values: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance [D] over the true frames of [B, T, D], and their count.

    The variance is taken about the mean (two passes): no cancellation. The count stays
    on the device: nothing waits for a GPU.
    """
    values = values.float()
    if padding is None:
        flat = values.flatten(0, 1)
        count = torch.full((), len(flat), device=values.device)
        return flat.mean(0), flat.var(0, unbiased=False), count
    count = (~padding).sum()
    mean = values.masked_fill(padding, 0.0).sum((0, 1)) / count
    squares = (values - mean).square().masked_fill(padding, 0.0)
    return mean, squares.sum((0, 1)) / count, count


class BatchNorm(Layer):
    """Give each number mean 0 and variance 1 over the true frames of the batch."""

    IS_DEEP: ClassVar[bool] = False
    OPTIONS: ClassVar[OptionTable] = {
        "momentum": Option("float", "step of the running statistics", 0.1, 0.0, 1.0),
        "epsilon": Option("float", "added to the variance", 1e-5, 0.0),
        "affine": Option("bool", "learn a scale and an offset", default=True),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.norm = MaskedBatchNorm(
            shape.dim,
            momentum=options["momentum"],
            epsilon=options["epsilon"],
            affine=options["affine"],
        )

    def forward(self, batch: Padded) -> Padded:
        """Normalise by the batch (training) or the running statistics."""
        return batch.with_values(self.norm(batch.values, batch.padding))
