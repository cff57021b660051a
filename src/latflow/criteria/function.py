"""From a value and a gradient in numpy to a differentiable value in torch.

Public: `CriterionResult`, `differentiable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from latflow.criteria.evaluation import Evaluation


@dataclass(frozen=True)
class CriterionResult:
    """A criterion of one utterance.

    Attributes:
        objective: scalar, float64, on the device of the log-likelihoods; to be
            *maximised*, a sum. Its gradient is that of this very number.
        num_frames: T.
        statistics: further sums.
    """

    objective: Tensor
    num_frames: int
    statistics: Mapping[str, float]


def differentiable(
    evaluate: Callable[[np.ndarray], Evaluation], log_likes: Tensor
) -> CriterionResult:
    """Evaluate a criterion so that torch can differentiate it, once.

    Args:
        evaluate: gives value and gradient for log-likelihoods [T, P].
        log_likes: [T, P], of any float type and device. What is no float64 is computed
            on as float32 (the criterion's own sums are float64 all the same).
    """
    kept: list[Evaluation] = []
    objective = _Evaluated.apply(log_likes, evaluate, kept)
    return CriterionResult(objective, kept[0].num_frames, kept[0].statistics)


class _Evaluated(torch.autograd.Function):
    """The value; backwards its gradient, times the incoming one."""

    @staticmethod
    def forward(
        ctx: Any,
        log_likes: Tensor,
        evaluate: Callable[[np.ndarray], Evaluation],
        kept: list[Evaluation],
    ) -> Tensor:
        """Compute both at once; `kept` receives them."""
        scores = log_likes.detach().cpu()
        if scores.dtype != torch.float64:
            scores = scores.float()
        found = evaluate(np.ascontiguousarray(scores.numpy()))
        kept.append(found)
        ctx.save_for_backward(torch.from_numpy(found.gradient))
        ctx.like = log_likes.device, log_likes.dtype
        return torch.tensor(
            found.objective, dtype=torch.float64, device=log_likes.device
        )

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator)
        ctx: Any, *incoming: Tensor
    ) -> tuple[Tensor, None, None]:
        """Multiply by the incoming gradient."""
        (gradient,) = ctx.saved_tensors
        device, dtype = ctx.like
        (factor,) = incoming
        gradient = gradient.to(device)
        return (gradient * factor.to(gradient.dtype)).to(dtype), None, None
