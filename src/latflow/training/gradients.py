"""The gradient of a whole network as one vector, and what is done to it before a step.

The parameters' `.grad` are windows on one flat float32 vector: one all-reduce, one norm
and one multiplication serve the whole network. A parameter that a batch does not touch
has a gradient of zeros, on all ranks alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

_NOISE = -2  # in the place of a rank
_DECAY = 0.55  # of the variance of gradient noise, Neelakantan et al. 2015


class FlatGradient:
    """The gradients of some parameters, as windows on one vector.

    Attributes:
        parameters: those that are trained.
        vector: float32 [N], their gradients one after another.

    Args:
        parameters: of a network, on their device; those without gradient are left out.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        count = sum(p.numel() for p in self.parameters)
        device = self.parameters[0].device if self.parameters else None
        self.vector = torch.zeros(count, dtype=torch.float32, device=device)
        begin = 0
        self._windows: list[Tensor] = []
        for parameter in self.parameters:
            window = self.vector[begin : begin + parameter.numel()]
            self._windows.append(window.view_as(parameter))
            begin += parameter.numel()

    def clear(self) -> None:
        """Set all to zero, and the parameters' `.grad` to the windows."""
        self.vector.zero_()
        for parameter, window in zip(self.parameters, self._windows, strict=True):
            parameter.grad = window

    def pull(self, factor: float) -> None:
        """Add `factor` times the parameters: the gradient of factor/2 x their square.

        Args:
            factor: of L2 regularisation, per frame.
        """
        with torch.no_grad():
            for window, parameter in zip(self._windows, self.parameters, strict=True):
                window.add_(parameter, alpha=factor)

    def add_noise(self, eta: float, step: int, seed: int) -> None:
        """Add normal noise of variance eta / (1 + step)^0.55, the same on all ranks.

        Args:
            eta: variance in step 0.
            step: of the optimiser, counted from 0.
            seed: of the training.
        """
        generator = torch.Generator().manual_seed(mixed_seed(seed, step, _NOISE))
        sigma = (eta / (1.0 + step) ** _DECAY) ** 0.5
        noise = torch.randn(self.vector.shape, generator=generator)
        self.vector.add_(noise.to(self.vector.device), alpha=sigma)

    def clip(self, max_norm: float | None) -> Tensor:
        """Shorten the gradient to a length, if it is longer.

        Args:
            max_norm: the length, > 0; None only measures.

        Returns:
            The length before, a scalar on the device; nobody waits for it here.
        """
        norm = torch.linalg.vector_norm(self.vector)
        if max_norm is not None:
            self.vector.mul_(torch.clamp(max_norm / norm, max=1.0))
        return norm


def mixed_seed(*numbers: int) -> int:
    """A seed that follows from some numbers: seed of the training, step, rank, use."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
