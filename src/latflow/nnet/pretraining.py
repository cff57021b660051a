"""Layer-wise pretraining: the first layers of a network, then one more in each step.

A network of n layers deep is trained in n steps: step 0 has its first layer and the
outputs, step 1 its first two, the last step is the whole network. Parameters of the
step before are carried over by name. Layers of a stack (`num_layers` of a `rec`, ...)
count one by one; norms, dropout and the like come with the layer before them.

Source: RETURNN's `Pretrain.py`, construction `from_input` (Zeyer et al. 2017); the idea
is of Hinton, Osindero & Teh 2006 and, with labels, Bengio et al. 2007.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.graph import DATA, LayerDescription
from latflow.nnet.network import Network


def num_steps(description: NetworkDescription) -> int:
    """Return the steps until the network is whole, the last included."""
    return max(1, sum(_depth(layer) for layer in _hidden(description)))


def first_whole_epoch(
    description: NetworkDescription, epochs_a_step: int, epochs: int
) -> int:
    """Return the first epoch, from 1, of a training in which a network is whole.

    Args:
        description: the whole network.
        epochs_a_step: of each step before the last.
        epochs: of the whole training.

    Raises:
        UserError: there is no such epoch.
    """
    first = (num_steps(description) - 1) * epochs_a_step + 1
    if first > epochs:
        raise UserError(
            f"pretraining takes {first - 1} epochs, but training has {epochs}",
            file=description.file,
            remedy="raise training.epochs, or lower training.pretraining",
        )
    return first


def shallower(description: NetworkDescription, step: int) -> NetworkDescription:
    """Return the network of one step.

    An output whose input is not there yet takes the last layer that is, along the
    first inputs. A layer keeps its name and its options, a stack has fewer copies.

    Args:
        description: the whole network.
        step: from 0; the last one and all after it are the whole network.

    Raises:
        ValueError: a negative step.
        UserError: the first layers alone do not make a network.
    """
    if step < 0:
        raise ValueError(f"step {step} is negative")
    if step + 1 >= num_steps(description):
        return description
    kept = _first_layers(description, step + 1)
    layers = {}
    sources = {layer.name: layer.inputs[0] for layer in description.plan.layers}
    for layer in description.plan.layers:
        if layer.name in kept or layer.loss:
            options = {**_given(description, layer), **kept.get(layer.name, {})}
            found = dict.fromkeys(_up(name, kept, sources) for name in layer.inputs)
            layers[layer.name] = {**options, "from": list(found)}
            if layer.initial_state not in kept:
                layers[layer.name].pop("initial_state", None)
    used = _reached(layers, description.outputs)
    layers = {name: options for name, options in layers.items() if name in used}
    config = {**description.config, "layers": layers}
    return NetworkDescription.from_config(config, file=description.file)


def _hidden(description: NetworkDescription) -> Iterator[LayerDescription]:
    """Return the layers that are not outputs, in an order of computation."""
    return (layer for layer in description.plan.layers if not layer.loss)


def _depth(layer: LayerDescription) -> int:
    """Return how many layers a layer counts for."""
    if not layer.layer_class.IS_DEEP:
        return 0
    stack = layer.layer_class.STACK
    return getattr(layer.options, stack) if stack else 1


def _first_layers(
    description: NetworkDescription, count: int
) -> dict[str, dict[str, Any]]:
    """Return the first hidden layers, `count` deep, and options that change."""
    kept: dict[str, dict[str, Any]] = {}
    for layer in _hidden(description):
        depth = _depth(layer)
        if depth > 0 and count == 0:
            break
        kept[layer.name] = {}
        if depth > count and layer.reuse is None:
            kept[layer.name] = {str(layer.layer_class.STACK): count}
        count -= min(depth, count)
    return kept


def _given(description: NetworkDescription, layer: LayerDescription) -> dict[str, Any]:
    return copy.deepcopy(dict(description.config["layers"][layer.name]))


def _up(name: str, kept: dict[str, dict[str, Any]], sources: dict[str, str]) -> str:
    """Return the nearest layer that is there, along the first inputs."""
    while name != DATA and name not in kept:
        name = sources[name]
    return name


def _reached(layers: dict[str, dict[str, Any]], ends: dict[str, Any]) -> set[str]:
    """Return the layers that some output needs."""
    reached: set[str] = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name != DATA and name not in reached:
            reached.add(name)
            waiting += layers[name]["from"]
            others = ("reuse", "initial_state")
            waiting += [layers[name][key] for key in others if key in layers[name]]
    return reached


@torch.no_grad()
def carry_over(before: Network, after: Network) -> list[str]:
    """Copy the parameters and statistics that two networks have in common.

    Args:
        before: the network of the step before, trained.
        after: the next one; what has the same name and shape is overwritten.

    Returns:
        The names of what could not be carried over: new layers, and outputs whose
        input has another size now.
    """
    known, new = before.state_dict(), []
    for name, value in after.state_dict().items():
        if name in known and known[name].shape == value.shape:
            value.copy_(known[name])
        else:
            new.append(name)
    return new


@dataclass(frozen=True, eq=False)
class Pretraining:
    """Layer-wise pretraining: a network that gets a layer more every few epochs.

    What was learnt is kept; the optimizer starts again with each layer.

    Attributes:
        whole: the network at the end; its own parameters are used where a layer is new.
        epochs: of each step before the last, >= 1.
        seed: of new parameters.
    """

    whole: Network
    epochs: int
    seed: int

    def step(self, epoch: int) -> int:
        """Return the step of an epoch, counted from 1; the last step has all layers."""
        last = num_steps(self.whole.description) - 1
        return min(last, (epoch - 1) // self.epochs)

    @property
    def first_whole(self) -> int:
        """The first epoch in which the network has all layers, from 1."""
        return (num_steps(self.whole.description) - 1) * self.epochs + 1

    def network(self, step: int, before: Network | None) -> Network:
        """Return the network of a step.

        Args:
            step: from 0.
            before: the network of the step before, whose parameters are kept.

        Raises:
            UserError: the first layers alone have another frame rate.
        """
        description = shallower(self.whole.description, step)
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
