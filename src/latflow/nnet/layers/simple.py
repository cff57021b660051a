"""Layers that treat each frame by itself, and those that join several inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from latflow.gpu_kernels import runs_kernels
from latflow.nnet.layer import Layer, LayerError, Padded, Shape
from latflow.nnet.options import Activation as ActivationName
from latflow.nnet.options import Function, Size
from latflow.nnet.stacks import copy_all_, groups_of, stacked, unstacked
from latflow.options import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveInt,
)


def _same(values: Tensor) -> Tensor:
    return values


def _log_softmax(values: Tensor) -> Tensor:
    return functional.log_softmax(values, -1)


def swoosh_r(values: Tensor) -> Tensor:
    """Return log(1 + exp(x - 1)) - 0.08 x - 0.313261687, which is 0 at 0.

    Source: Yao et al. 2024 (Zipformer), section 3.4.
    """
    return functional.softplus(values - 1.0) - 0.08 * values - 0.313261687


def swoosh_l(values: Tensor) -> Tensor:
    """Return log(1 + exp(x - 4)) - 0.08 x - 0.035; see `swoosh_r`."""
    return functional.softplus(values - 4.0) - 0.08 * values - 0.035


ACTIVATIONS = {
    "none": _same,
    "relu": functional.relu,
    "leaky_relu": functional.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "swoosh_l": swoosh_l,
    "swoosh_r": swoosh_r,
    "log_softmax": _log_softmax,
}


class SemiOrthogonal(nn.Linear):
    """A linear map without offset that is held near a semi-orthogonal one."""

    def __init__(self, dim_in: int, dim_out: int) -> None:
        super().__init__(dim_in, dim_out, bias=False)


@torch.no_grad()
def constrain(maps: Iterable[SemiOrthogonal]) -> None:
    """Move matrices one step towards (multiples of) semi-orthogonal ones."""
    weights = [part.weight for part in maps]
    for alike in groups_of(weights, lambda w: w, lambda w: w.shape):
        moved = semi_orthogonal_step(stacked(alike))
        copy_all_(alike, unstacked(moved, len(alike)))


def semi_orthogonal_step(matrix: Tensor, scale: float | None = None) -> Tensor:
    """Return one step towards M M^T = scale^2 I (of M^T where there are more rows).

    Let P = M M^T. The step M - 4 v / scale^2 (P - scale^2 I) M goes down the gradient
    of |P - scale^2 I|^2; with v = 1/8 it converges quadratically near the goal. A
    floating scale is sqrt(trace(P P) / trace(P)), for which the step is orthogonal to
    M and so leaves its norm alone (to first order); v is then halved once or twice
    where the eigenvalues of P lie apart, against divergence.

    Args:
        matrix: [..., R, C].
        scale: the goal's scale, > 0; None lets it float.

    Returns:
        [..., R, C], the moved matrices. Nothing waits for a GPU.

    Source: Povey et al. 2018, sections 2.1 to 2.3; Kaldi
    `nnet3/nnet-utils.cc:ConstrainOrthonormalInternal`.
    """
    if matrix.shape[-2] > matrix.shape[-1]:
        return semi_orthogonal_step(matrix.mT, scale).mT
    product = matrix @ matrix.mT
    diagonal = product.diagonal(dim1=-2, dim2=-1)
    if scale is not None:
        diagonal.sub_(scale**2)
        return matrix - (0.5 / scale**2) * (product @ matrix)
    trace, trace_square = diagonal.sum(-1), product.square().sum((-2, -1))
    square_scale = trace_square / trace
    # 1 where all eigenvalues are equal, more the further they lie apart
    spread = matrix.shape[-2] * trace_square / trace**2
    halvings = (spread > 1.02).to(matrix.dtype) + (spread > 1.1).to(matrix.dtype)
    speed = 0.125 * 0.5**halvings
    diagonal.sub_(square_scale[..., None])
    factor = (4.0 * speed / square_scale)[..., None, None]
    moved = matrix - factor * (product @ matrix)
    # a zero matrix has no direction
    return torch.where((trace > 0.0)[..., None, None], moved, matrix)


class LinearOptions(Options):
    """Options of `Linear`."""

    size: Size
    activation: ActivationName = "none"
    bias: bool = True
    """add the vector b"""
    semi_orthogonal: bool = False
    """hold W semi-orthogonal (needs bias: false)"""


class Linear(Layer):
    """An affine map of each frame, y = f(W x + b).

    As `output` it has a loss, and `size` is the number of classes of its target.
    A semi-orthogonal one has W W^T = s^2 I, s free, kept so by `Network.constrain()`,
    and no b: Kaldi's `linear-component` with `orthonormal-constraint=-1`.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    OPTIONS = LinearOptions

    def __init__(self, shape: Shape, options: LinearOptions) -> None:
        super().__init__(shape)
        size = options.size
        if options.semi_orthogonal:
            if options.bias:
                raise LayerError("semi_orthogonal needs bias: false")
            self.map = SemiOrthogonal(shape.dim, size)
        else:
            self.map = nn.Linear(shape.dim, size, bias=options.bias)
        self.activation = ACTIVATIONS[options.activation]
        self.shape = Shape(options.size)

    def forward(self, batch: Padded) -> Padded:
        """Map each frame."""
        return batch.with_values(self.activation(self.map(batch.values)))


class ActivationOptions(Options):
    """Options of `Activation`."""

    function: Function
    """the function"""


class Activation(Layer):
    """A non-linear function of each number."""

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS = ActivationOptions

    def __init__(self, shape: Shape, options: ActivationOptions) -> None:
        super().__init__(shape)
        self.function = ACTIVATIONS[options.function]

    def forward(self, batch: Padded) -> Padded:
        """Apply the function."""
        return batch.with_values(self.function(batch.values))


class DropoutOptions(Options):
    """Options of `Dropout`."""

    rate: Annotated[float, Field(ge=0, le=0.99)] = 0.1
    """share of numbers set to zero"""


class Dropout(Layer):
    """Set a share of the numbers to zero in training and scale up the others."""

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS = DropoutOptions

    def __init__(self, shape: Shape, options: DropoutOptions) -> None:
        super().__init__(shape)
        self.dropout = nn.Dropout(options.rate)

    def forward(self, batch: Padded) -> Padded:
        """Drop numbers (in training)."""
        return batch.with_values(self.dropout(batch.values))


class LayerNorm(Layer):
    """Give each frame mean 0 and variance 1, then a learnt scale and offset."""

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    NORM: ClassVar[type[nn.Module]] = nn.LayerNorm

    def __init__(self, shape: Shape, options: Options) -> None:  # noqa: ARG002
        super().__init__(shape)
        self.norm = self.NORM(shape.dim)

    def forward(self, batch: Padded) -> Padded:
        """Normalize each frame."""
        return batch.with_values(self.norm(batch.values))


class BiasNormalization(nn.Module):
    """Divide frames by how far they are from a learnt one; see `BiasNorm`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        """Normalize [..., D]."""
        square = (values - self.bias).square().mean(-1, keepdim=True)
        return values * (self.log_scale.exp() * torch.rsqrt(square + _TINY))


class BiasNorm(LayerNorm):
    """x exp(g) / RMS(x - b), b and g learnt: a layer norm that keeps how large x is.

    Source: Yao et al. 2024 (Zipformer), section 3.3.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    NORM: ClassVar[type[nn.Module]] = BiasNormalization


class Concat(Layer):
    """The inputs side by side: [B, T, D1 + D2 + ...]."""

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False

    def __init__(self, shape: Shape, options: Options) -> None:  # noqa: ARG002
        super().__init__(shape)

    def forward(self, batch: Padded) -> Padded:
        """Return the joined inputs."""
        return batch


class Add(Concat):
    """The sum of inputs of equal size."""

    IS_CAPTURABLE: ClassVar[bool] = True
    COMBINE: ClassVar[str] = "add"


class Multiply(Concat):
    """The product of inputs of equal size, number by number."""

    IS_CAPTURABLE: ClassVar[bool] = True
    COMBINE: ClassVar[str] = "multiply"


class SliceOptions(Options):
    """Options of `Slice`."""

    begin: NonNegativeInt = 0
    """first number taken"""
    size: PositiveInt | None = None
    """numbers taken; null for all from `begin` on"""
    features: str | None = None
    """instead of begin and size: one of the features side by side, by its name"""


class Slice(Layer):
    """Some of the numbers of each frame, side by side as they were.

    Of features of several streams (`nnet.pasted`) it takes one by its name, and of
    features with i-vectors it parts the two by numbers, so that convolutions over
    frequency see the former alone.
    """

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS = SliceOptions

    def __init__(self, shape: Shape, options: SliceOptions) -> None:
        super().__init__(shape)
        if options.features is not None:
            raise LayerError(f"features {options.features}: only data is made of some")
        self.begin = options.begin
        self.end = shape.dim if options.size is None else self.begin + options.size
        if not self.begin < self.end <= shape.dim:
            end = "from {} on" if options.size is None else "{} to {}"
            numbers = end.format(self.begin, self.end - 1)
            raise LayerError(
                f"there are no numbers {numbers} of a frame of {shape.dim}"
            )
        self.shape = Shape(self.end - self.begin)

    def forward(self, batch: Padded) -> Padded:
        """Take numbers: [B, T, D] -> [B, T, size]."""
        return batch.with_values(batch.values[:, :, self.begin : self.end])


_TINY = 1e-8  # beside a mean of squares: frames of zeros stay zeros
_FUSED = {torch.float32, torch.bfloat16}  # numbers of fused batch normalization


class MaskedBatchNorm(nn.Module):
    """Batch normalization whose statistics are of the true frames alone.

    Training uses mean and (biased) variance over the batch's frames without padding and
    moves the running ones towards them; evaluation uses the running ones. torch's
    `BatchNorm1d` would count the zeros of the padding.

    Args:
        dim: numbers a frame.
        momentum: step of the running mean and variance towards a batch's.
        epsilon: added to the variance.
        affine: learn a scale and an offset; Kaldi's batch normalization has none.
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
        """Normalize values [B, T, D]; `padding` is [B, T, 1] or None."""
        if self._is_fused(values):
            return self._fused(values, padding)
        return self._plain(values, padding)

    def after_relu(
        self,
        values: Tensor,
        padding: Tensor | None,
        present: Tensor | None = None,
        factor: float = 1.0,
    ) -> Tensor:
        """Normalize what ReLU makes of values, and add others.

        Args:
            values: [B, T, D]; changed in place.
            padding: [B, T, 1] or None.
            present: [B, T, D], what is added; None for nothing.
            factor: of that.
        """
        if self._is_fused(values):
            more = {"relu": True, "present": present, "factor": factor}
            return self._fused(values, padding, **more)
        found = self._plain(functional.relu_(values), padding)
        return found if present is None else torch.add(found, present, alpha=factor)

    def _is_fused(self, values: Tensor) -> bool:
        """Return whether a GPU's kernels, whose sums are float32, do it all at once."""
        is_known = self.training and self.scale is None
        return is_known and values.dtype in _FUSED and runs_kernels(values)

    def _fused(self, values: Tensor, padding: Tensor | None, **more: Any) -> Tensor:
        """Normalize by a GPU's kernels; see `batch_norm_triton.normalized`."""
        # Imported here: Triton is where torch is made for GPUs.
        from latflow.nnet.batch_norm_triton import normalized

        running = self.mean, self.variance
        steps = {"momentum": self.momentum, "epsilon": self.epsilon}
        return normalized(values, padding, running, **steps, **more)

    def _plain(self, values: Tensor, padding: Tensor | None) -> Tensor:
        """Normalize by torch's operations."""
        if not self.training or (padding is None and values[..., 0].numel() > 1):
            mean, variance = self.mean, self.variance
            if self.training:
                # The backward pass keeps what it is given here, and batches that
                # follow may move the running statistics before it comes.
                mean, variance = mean.clone(), variance.clone()
            flat = functional.batch_norm(
                values.flatten(0, 1),
                mean,
                variance,
                self.scale,
                self.offset,
                training=self.training,
                momentum=self.momentum,
                eps=self.epsilon,
            )
            if self.training:
                self.mean.copy_(mean)
                self.variance.copy_(variance)
            return flat.view_as(values)
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
    """Return mean and biased variance [D] of the true frames, and their count.

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


class BatchNormOptions(Options):
    """Options of `BatchNorm`."""

    momentum: Fraction = 0.1
    """step of the running statistics"""
    epsilon: NonNegativeFloat = 1e-5
    """added to the variance"""
    affine: bool = True
    """learn a scale and an offset"""


class BatchNorm(Layer):
    """Give each number mean 0 and variance 1 over the true frames of the batch."""

    IS_CAPTURABLE: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS = BatchNormOptions

    def __init__(self, shape: Shape, options: BatchNormOptions) -> None:
        super().__init__(shape)
        self.norm = MaskedBatchNorm(
            shape.dim,
            momentum=options.momentum,
            epsilon=options.epsilon,
            affine=options.affine,
        )

    def forward(self, batch: Padded) -> Padded:
        """Normalize by the batch (training) or the running statistics."""
        return batch.with_values(self.norm(batch.values, batch.padding))
