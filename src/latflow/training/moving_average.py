"""The moving average of a network's parameters, which is evaluated in their place.

After step s each mean m becomes d m + (1 - d) p, of the parameter p, with
d = min(decay, (1 + s) / (10 + s)): at the start, when parameters still change much, it
looks back less far.

Source: Polyak & Juditsky 1992; the beginning as TensorFlow's
`ExponentialMovingAverage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """The means of the parameters that learn; of none where there is no decay.

    Args:
        network: on its device.
        decay: weight of the mean before, per step; None for no means.
    """

    def __init__(self, network: nn.Module, decay: float | None) -> None:
        self.decay = decay
        named = network.named_parameters()
        self._parameters = {name: p for name, p in named if p.requires_grad}
        self._means: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take a step of the training in, counted from 1."""
        if self.decay is None:
            return
        if not self._means:
            self._means = {name: p.clone() for name, p in self._parameters.items()}
        share = 1.0 - min(self.decay, (1.0 + step) / (10.0 + step))
        ends = list(self._parameters.values())
        torch._foreach_lerp_(list(self._means.values()), ends, share)  # pyright: ignore

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """Use the means instead of the parameters within a context."""
        kept = {name: p.detach().clone() for name, p in self._averaged()}
        self.put_in()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._averaged():
                    parameter.copy_(kept[name])

    @torch.no_grad()
    def put_in(self) -> None:
        """Set the parameters to the means."""
        for name, parameter in self._averaged():
            parameter.copy_(self._means[name])

    def _averaged(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that have means, by name."""
        return ((name, self._parameters[name]) for name in self._means)

    def state(self) -> dict[str, Tensor]:
        """Return the means by the parameters' names, off the device."""
        return {name: mean.to("cpu", copy=True) for name, mean in self._means.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self._means = {
            name: mean.to(self._parameters[name].device, copy=True)
            for name, mean in state.items()
        }
