"""ScaledAdam: Adam whose steps are as long as the parameters are large.

A parameter (a weight matrix, a bias) is its root mean square r times a shape. Adam's
step changes the shape, so that it is multiplied by r; the gradient with respect to r
is followed by a second, slower Adam. How large a layer is, and how large its gradient,
then do not decide how fast it learns.

The gradient is shortened where its length, each parameter's weighted by r, is more than
a factor above the median of the last steps.

Source: Yao et al. 2024, "Zipformer: A faster and better encoder for automatic speech
recognition", section 3.5 (steps; their bounds, single numbers and clipping are what
icefall's recipes do).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, optim
from torch.nn import Parameter

_LEAST_RMS, _GREATEST_RMS = 1e-5, 3.0
_GREATEST_NUMBER = 10.0  # of parameters that are a single number
_GREATEST_SCALING = 0.1  # of a step, as a share of r


class ScaledAdam(optim.Optimizer):
    """Make steps in proportion to the parameters; see the module.

    Parameters of a single number have no shape: their steps are as long as those of r,
    and are not scaled.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, the share of r by which a step changes a parameter.
        betas: decay of the first and the second moment, per step.
        eps: added to the root of the second moment.
        scale_rate: learning rate of r over that of the shape.
        clip_scale: greatest length of a gradient over the median; None for any.
        clip_history: steps that the median is taken of; before this many, no gradient
            is shortened.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        scale_rate: float = 0.1,
        clip_scale: float | None = 2.0,
        clip_history: int = 100,
    ) -> None:
        self._clip_scale, self._clip_history = clip_scale, clip_history
        defaults = {"lr": lr, "betas": betas, "eps": eps, "scale_rate": scale_rate}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Change the parameters that have a gradient."""
        assert closure is None
        groups = [
            (group, [p for p in group["params"] if p.grad is not None])
            for group in self.param_groups
        ]
        sizes = [_rms(parameters) for _, parameters in groups]
        factor = self._clip_factor(groups, sizes)
        for (group, parameters), rms in zip(groups, sizes, strict=True):
            for parameter, size in zip(parameters, rms, strict=True):
                self._change(parameter, size, factor, group)

    def _clip_factor(
        self,
        groups: Sequence[tuple[dict[str, Any], list[Parameter]]],
        sizes: Sequence[Sequence[Tensor]],
    ) -> Tensor | None:
        """Return what gradients are multiplied by, and remember their length.

        The lengths are kept with the first parameter, which checkpoints hold.
        """
        if self._clip_scale is None:
            return None
        lengths = [
            torch.linalg.vector_norm(_gradient(p))
            * (size if p.numel() > 1 else group["scale_rate"])
            for (group, parameters), rms in zip(groups, sizes, strict=True)
            for p, size in zip(parameters, rms, strict=True)
        ]
        if not lengths:
            return None
        length = torch.linalg.vector_norm(torch.stack(lengths))
        first = next(p for group in self.param_groups for p in group["params"])
        kept = self.state[first]
        past = kept.get("lengths", length.new_zeros(0))
        kept["lengths"] = torch.cat((past, length[None]))[-self._clip_history :]
        if len(past) < self._clip_history:
            return None
        return (self._clip_scale * past.median() / length).clamp(max=1.0)

    def _change(
        self,
        parameter: Parameter,
        rms: Tensor,
        factor: Tensor | None,
        group: dict[str, Any],
    ) -> None:
        """Change a parameter by its step."""
        gradient = _gradient(parameter)
        if factor is not None:
            gradient = gradient * factor
        state = self.state[parameter]
        state["step"] = step = state.get("step", 0) + 1
        direction = _adam_direction(state, "", gradient, step, group)
        rate = group["lr"] * group["scale_rate"]
        if parameter.numel() == 1:
            parameter.sub_(direction, alpha=rate)
            parameter.clamp_(-_GREATEST_NUMBER, _GREATEST_NUMBER)
            return
        of_scale = (gradient * parameter).sum() / rms
        scaling = _adam_direction(state, "scale_", of_scale, step, group)
        scaling = (scaling * rate).clamp(-_GREATEST_SCALING, _GREATEST_SCALING)
        scaling = torch.where(rms <= _LEAST_RMS, scaling.clamp(max=0.0), scaling)
        scaling = torch.where(rms > _GREATEST_RMS, rate, scaling)
        parameter.sub_(direction * (group["lr"] * rms) + parameter * scaling)


def _gradient(parameter: Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _rms(parameters: Sequence[Parameter]) -> list[Tensor]:
    """Return each parameter's root mean square, bounded from below."""
    return [
        (torch.linalg.vector_norm(p) / p.numel() ** 0.5).clamp(min=_LEAST_RMS)
        for p in parameters
    ]


def _adam_direction(
    state: dict[str, Any],
    prefix: str,
    gradient: Tensor,
    step: int,
    group: dict[str, Any],
) -> Tensor:
    """Return Adam's step for a learning rate of 1, and update the moments."""
    beta1, beta2 = group["betas"]
    for name in ("mean", "square"):
        if prefix + name not in state:
            state[prefix + name] = torch.zeros_like(gradient)
    mean, square = state[f"{prefix}mean"], state[f"{prefix}square"]
    mean.lerp_(gradient, 1.0 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    root = (square / (1.0 - beta2**step)).sqrt_().add_(group["eps"])
    return mean / root.mul_(1.0 - beta1**step)
