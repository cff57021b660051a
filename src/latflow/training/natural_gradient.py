"""Stochastic gradient descent along the natural gradient, as Kaldi trains networks.

The gradient of the matrix W of an affine map y = W x + b is a sum over frames of g x^T,
with the derivatives g to y. Let A be the second moments of x (and of 1, for b), and B
those of g. In the place of the gradient G, a step takes

    P(B) G P(A),    P(M) = c (M + alpha tr(M) / dim I)^-1

where c is such that multiplying with P(M) leaves the mean square of x, or g, as it is.
Directions in which inputs or derivatives vary little count for more. A and B are means
that fade over `history` frames. Parameters of other kinds have the plain gradient.

Kaldi multiplies each frame, with an estimate of low rank; here whole matrices are
inverted, and the sum over frames is multiplied.

Public: `NaturalGradient`.

Source: Povey, Zhang & Khudanpur 2015, "Parallel training of DNNs with natural gradient
and parameter averaging"; Kaldi `nnet3/natural-gradient-online.cc`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from latflow.training.distributed import Backend

_ROWS = 1024  # frames that a map's moments of a batch are taken of, at most
_WHOLE = 128  # size of matrices that are inverted at once on a processor, at most
_FIRST = 10  # steps before which moments are taken in each
_NAMES = ("input_moments", "output_moments")  # in the state of a matrix
_CHANNELS = 1  # dimension of the maps of a convolution's input and output


class NaturalGradient(optim.SGD):
    """Gradient descent of a network, preconditioned; see the module's description.

    Steps with `is_observing` look at inputs and derivatives of all affine maps and
    two-dimensional convolutions that the forward pass goes through in training; ranks
    add up what they have seen by `share`, so that all make the same step.

    Args:
        network: its modules of type `nn.Linear` and `nn.Conv2d` are preconditioned.
        params: as `optim.SGD`.
        lr: as `optim.SGD`. Kaldi's gradients are sums: with that of a mean over the
            frames of a batch, its learning rate times their number is as large.
        alpha: smoothing with the mean of the diagonal.
        history: frames after which the weight of what was seen has fallen to 1 / e.
        period: steps from one observation to the next.
        momentum: as `optim.SGD`.
        weight_decay: as `optim.SGD`; not preconditioned.
        dtype: of products, bf16 where passes are (a quarter of the time of float32 on
            processors that multiply such numbers); None for that of the parameters,
            which sums of moments and inverses always have.
    """

    def __init__(
        self,
        network: nn.Module,
        params: Iterable[Any],
        lr: float,
        *,
        alpha: float,
        history: float,
        period: int,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self._history, self._period = history, period
        self._maps = [
            _Map(module, alpha, dtype)
            for module in network.modules()
            if isinstance(module, nn.Linear | nn.Conv2d)
            and module.weight.requires_grad
            and getattr(module, "groups", 1) == 1
        ]
        self._hooks: list[RemovableHandle] = []
        self._steps = 0
        self._set_hooks()

    @property
    def is_observing(self) -> bool:
        """Tell whether this step looks at inputs and derivatives."""
        return self._steps < _FIRST or self._steps % self._period == 0

    def share(self, backend: Backend) -> None:
        """Add up what the ranks have seen in this step."""
        if backend.size > 1 and self.is_observing:
            backend.all_reduce_([m for own in self._maps for m in own.moments])

    def forget(self) -> None:
        """Drop what was seen in a step that is not made."""
        for own in self._maps:
            for moments in own.moments:
                moments.zero_()

    def _set_hooks(self) -> None:
        """Have hooks in steps that observe alone: layers are faster without."""
        if self.is_observing == bool(self._hooks):
            return
        for hook in self._hooks:
            hook.remove()
        # hooks outlive the optimizer where it is replaced
        mine = weakref.ref[NaturalGradient](self)
        looks = [(own, _Look(mine, weakref.ref(own))) for own in self._maps]
        self._hooks = [
            own.module.register_forward_hook(look)
            for own, look in looks
            if self.is_observing
        ]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make a step."""
        for own in self._maps:
            if self.is_observing:
                own.update(self.state[own.weight], self._history)
                own.invert(self.state[own.weight])
            own.precondition()
        self._steps += 1
        self._set_hooks()
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the number of steps."""
        return {**super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state."""
        state = dict(state_dict)
        self._steps = state.pop("steps")
        self._set_hooks()
        super().load_state_dict(state)
        for own in self._maps:
            own.invert(self.state[own.weight])


class _Map:
    """Gathers what is seen of an affine map in a step, and changes its gradient.

    Attributes:
        moments: sums over frames of the outer products of inputs (with a 1 for the
            offset) and of derivatives, in each with the number of frames behind it;
            flat, float32.
    """

    def __init__(
        self, module: nn.Linear | nn.Conv2d, alpha: float, dtype: torch.dtype | None
    ) -> None:
        self.module, self.weight = module, module.weight
        self._alpha, self._dtype = alpha, dtype
        size = self.weight[0].numel() + (module.bias is not None)
        self._sizes = (size, len(self.weight))
        self.moments = [self.weight.new_zeros(n * n + 1) for n in self._sizes]
        self._factors: tuple[Tensor, ...] = ()

    def look(self, which: int, values: Tensor) -> None:
        """Add inputs (0), or derivatives to outputs (1), of a pass."""
        with torch.no_grad(), torch.autocast(values.device.type, enabled=False):
            rows, count = self._rows(which, values.detach())
            sums, size = self.moments[which], self._sizes[which]
            dtype = self._dtype_of_moments(size)
            rows = rows[:: -(-len(rows) // _ROWS)].to(dtype)
            if which == 0 and self.module.bias is not None:
                rows = torch.cat((rows, rows.new_ones(len(rows), 1)), 1)
            sums[:-1].view(size, size).add_(rows.T @ rows, alpha=count / len(rows))
            sums[-1].add_(count)

    def _dtype_of_moments(self, size: int) -> torch.dtype:
        """Return that of the products with which moments M of D numbers are taken.

        Where elements of M are rounded by a part u, the eigenvalues of their errors are
        at most u |M|, and |M| < tr(M) unless all frames have one direction: with
        alpha >= u D, what is inverted, M + alpha tr(M) / D I, stays positive definite.
        """
        dtype = self.weight.dtype
        if self._dtype is None:
            return dtype
        rounding = torch.finfo(self._dtype).eps / 2
        return self._dtype if self._alpha >= rounding * size else dtype

    def _rows(self, which: int, values: Tensor) -> tuple[Tensor, int]:
        """Return inputs or derivatives, a row for each frame (and frequency).

        Returns:
            Rows, of a convolution's inputs those of some sequences; and the number of
            rows of all sequences.
        """
        module = self.module
        if isinstance(module, nn.Linear):
            rows = values.flatten(0, -2)
            return rows, len(rows)
        if which == 1:
            rows = values.movedim(_CHANNELS, -1).flatten(0, -2)
            return rows, len(rows)
        some = values[:: max(1, len(values) // 2)].to(self.weight.dtype)
        assert not isinstance(module.padding, str)
        patches = functional.unfold(
            some, module.kernel_size, module.dilation, module.padding, module.stride
        )
        rows = patches.transpose(1, 2).flatten(0, 1)
        return rows, len(rows) // len(some) * len(values)

    def update(self, kept: dict[str, Any], history: float) -> None:
        """Let the moments that are known fade, and add what was seen."""
        for name, sums, size in zip(_NAMES, self.moments, self._sizes, strict=True):
            seen = (sums[:-1] / sums[-1].clamp(min=1.0)).view(size, size)
            if name in kept:
                share = -torch.expm1(-sums[-1] / history)  # none of it if none is seen
                seen = torch.lerp(kept[name], seen, share)
            kept[name] = seen
            sums.zero_()

    def invert(self, kept: Mapping[str, Any]) -> None:
        """Make the factors of the gradient of the moments that are known."""
        known = [_inverse(kept[name], self._alpha) for name in _NAMES if name in kept]
        self._factors = tuple(inverse.to(self._dtype) for inverse in known)

    def precondition(self) -> None:
        """Multiply the gradient by both factors."""
        own = [p for p in (self.weight, self.module.bias) if p is not None]
        gradients = [p.grad for p in own if p.grad is not None]
        if len(gradients) < len(own) or not self._factors:
            return
        rows = [g.flatten(1) if g.ndim > 1 else g[:, None] for g in gradients]
        of_input, of_output = self._factors
        changed = of_output @ torch.cat(rows, 1).to(of_input.dtype) @ of_input
        sizes = [part.shape[1] for part in rows]
        for gradient, part in zip(gradients, changed.split(sizes, 1), strict=True):
            gradient.copy_(part.reshape(gradient.shape))


class _Look:
    """A hook that lets a map see its inputs, and the derivatives to its outputs."""

    def __init__(
        self, optimizer: weakref.ref[NaturalGradient], own: weakref.ref[_Map]
    ) -> None:
        self._optimizer, self._map = optimizer, own

    def __call__(
        self, module: nn.Module, inputs: Sequence[Tensor], output: Tensor
    ) -> Tensor | None:
        """See a pass of a training step."""
        optimizer, own = self._optimizer(), self._map()
        if optimizer is None or own is None or own.module is not module:
            return None
        if not (module.training and output.requires_grad and optimizer.is_observing):
            return None
        own.look(0, inputs[0])
        output.register_hook(lambda gradient: own.look(1, gradient))
        return output.clone()  # what follows may change it in place; the hook would go


def _inverse(moments: Tensor, alpha: float) -> Tensor:
    """Return what directions are multiplied with; see the module's description.

    Args:
        moments: float32[D, D], symmetric; zeros where nothing varies.
        alpha: smoothing.

    Returns:
        float32[D, D], which leaves the mean square as it is.
    """
    mean = moments.diagonal().mean()
    is_seen = mean > 0
    mean = torch.where(is_seen, mean, 1.0)
    smooth = moments / mean
    smooth.diagonal().add_(alpha)
    inverse = _inverted(smooth)
    # tr(inverse moments inverse) / mean, since moments / mean is smooth - alpha I
    trace = inverse.diagonal().sum(dtype=torch.float64)
    square = trace - alpha * inverse.square().sum(dtype=torch.float64)
    scale = torch.where(is_seen, (len(moments) / square).sqrt(), alpha).to(mean.dtype)
    return inverse * scale  # nothing is changed where nothing was seen


def _inverted(matrix: Tensor) -> Tensor:
    """Return the inverse of a symmetric positive definite matrix [D, D].

    On a processor by halves, whose products are faster than the triangular matrices of
    a whole factorization. Numbers that are none stay: the loss tells them, with the
    utterances.
    """
    size = len(matrix)
    if matrix.is_cuda or size <= _WHOLE:
        return torch.cholesky_inverse(torch.linalg.cholesky_ex(matrix).L)
    half = size // 2
    beside, last = matrix[:half, half:], matrix[half:, half:]
    first = _inverted(matrix[:half, :half])
    passed = first @ beside
    # of the Schur complement of the first half
    second = _inverted(torch.addmm(last, beside.T, passed, alpha=-1.0))
    corner = passed @ second
    inverse = torch.empty_like(matrix)
    inverse[:half, :half] = torch.addmm(first, corner, passed.T)
    inverse[:half, half:] = -corner
    inverse[half:, :half] = -corner.T
    inverse[half:, half:] = second
    return inverse
