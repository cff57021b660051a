"""Layer-wise pretraining in a training: which network an epoch has."""

from __future__ import annotations

from dataclasses import dataclass

from latflow.errors import UserError
from latflow.nnet.network import Network
from latflow.nnet.pretraining import carry_over, num_steps


@dataclass(frozen=True, eq=False)
class Growth:
    """A network that grows by a layer every few epochs.

    What was learnt is kept; the optimiser starts anew with each layer.

    Attributes:
        whole: the network at the end; its own parameters are used where a layer is new.
        epochs: of each step before the last, >= 1.
        seed: of new parameters.
    """

    whole: Network
    epochs: int
    seed: int

    def step(self, epoch: int) -> int:
        """The step of an epoch, counted from 1; the last step has all layers."""
        last = num_steps(self.whole.description) - 1
        return min(last, (epoch - 1) // self.epochs)

    @property
    def first_whole(self) -> int:
        """The first epoch in which the network has all layers, from 1."""
        return (num_steps(self.whole.description) - 1) * self.epochs + 1

    def network(self, step: int, before: Network | None) -> Network:
        """The network of a step.

        Args:
            step: from 0.
            before: the network of the step before, whose parameters are kept.

        Raises:
            UserError: the first layers alone have another frame rate.
        """
        description = self.whole.description.pretraining(step)
        classes = {name: o.num_classes for name, o in self.whole.outputs.items()}
        network = Network(description, self.whole.dim_in, classes, seed=self.seed)
        if network.subsampling != self.whole.subsampling:
            raise UserError(
                "pretraining: the first layers have another frame rate than the whole",
                file=description.file,
                remedy="put the layers that leave out frames first, or set "
                "training.pretraining to 0",
            )
        if before is not None:
            carry_over(before, network)
        device = next(self.whole.parameters()).device
        return network.to(device)
