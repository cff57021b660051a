"""The acoustic network: features of a batch in, scores of the outputs' classes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from latflow.nnet.description import LayerDescription, Loss, NetworkDescription
from latflow.nnet.graph import LayerGraph
from latflow.nnet.layer import Context, Shape
from latflow.nnet.layers.semi_orthogonal import SemiOrthogonal
from latflow.nnet.options import Place
from latflow.nnet.padded import Padded
from latflow.nnet.summary import NetworkGraph, draw, format_table


class Output(NamedTuple):
    """What an output gives.

    Attributes:
        logits: [B, T', K], scores before the softmax; 0 beyond the ends.
        lengths: int64 [B], frames of each sequence, on the device of the given lengths.
    """

    logits: Tensor
    lengths: Tensor


class ReceptiveField(NamedTuple):
    """Frames of the features that an output frame sees; None = all.

    Attributes:
        left: frames before.
        right: frames after.
    """

    left: int | None
    right: int | None


@dataclass(frozen=True)
class OutputInfo:
    """An output of a network.

    Attributes:
        loss: its criterion, the name of its labels and its weight.
        num_classes: K.
    """

    loss: Loss
    num_classes: int


class Network(nn.Module):
    """A network made from its description.

    A batch gives each sequence what it would give alone (in evaluation; in training
    batch normalisation and dropout tie a batch together, padding still does not
    count). Output frame t' belongs to the features' frame `subsampling` x t'.

    Args:
        description: the layers.
        dim_in: features a frame.
        classes: number of classes of each output, by the output's or its target's name.
        seed: of the parameters' start; the same seed gives the same network.

    Raises:
        UserError: layers that do not fit each other, or an output without its number
            of classes.
    """

    def __init__(
        self,
        description: NetworkDescription,
        dim_in: int,
        classes: Mapping[str, int],
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.description = description
        self.dim_in = dim_in
        place = Place(description.file)
        sizes = _num_classes(description.outputs, classes, place)
        with torch.random.fork_rng(devices=[]):
            self.body = LayerGraph(description.plan, Shape(dim_in), sizes, seed=seed)
        self.outputs = {
            name: OutputInfo(loss, sizes[name])
            for name, loss in description.outputs.items()
        }
        for name, size in sizes.items():
            given = self.body.shapes[name].dim
            if given != size:
                what = f"gives {given} numbers a frame, its target has {size} classes"
                raise place.inside(name).error(what)
        strides = {name: self.body.contexts[name].stride for name in sizes}
        if len(set(strides.values())) > 1:
            raise place.error(f"its outputs have different frame rates: {strides}")
        self.subsampling = next(iter(strides.values()))

    def forward(self, features: Tensor, lengths: Tensor) -> dict[str, Output]:
        """Score the classes of every output.

        Args:
            features: [B, T, dim_in]; anything may stand beyond the ends.
            lengths: integers [B], 1..T; on the CPU no transfer is needed.

        Returns:
            The outputs by name, T' = ceil(T / subsampling).

        Raises:
            ValueError: shapes that do not fit.
        """
        if features.shape[-1] != self.dim_in:
            raise ValueError(f"need {self.dim_in} features, not {features.shape[-1]}")
        results = self.body(Padded.of(features, lengths))
        return {
            name: Output(batch.values, batch.lengths.to(lengths.device))
            for name, batch in results.items()
        }

    @property
    def num_parameters(self) -> int:
        """Numbers that training changes; shared ones count once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def receptive_field(self) -> ReceptiveField:
        """The frames that an output frame sees, the widest of the outputs'."""
        whole = Context()
        for name in self.outputs:
            whole = whole.joined(self.body.contexts[name])
        return ReceptiveField(whole.left, whole.right)

    @torch.no_grad()
    def constrain(self) -> None:
        """Move semi-orthogonal factors one step towards being so (tdnnf).

        For the trainer, after a step of the optimiser; Kaldi does so after a quarter
        of the steps, drawn at random. Nothing happens where there is no such factor.
        """
        for module in self.modules():
            if isinstance(module, SemiOrthogonal):
                module.constrain()

    def summary(self) -> str:
        """A table of the layers: class, inputs, size, parameters, receptive field."""
        return format_table(self.graph(), self)

    def graph(self) -> NetworkGraph:
        """The layers and connections, for a drawing."""
        return draw(self.body, self.dim_in)

    def layer(self, name: str) -> LayerDescription:
        """The description of a layer.

        Raises:
            KeyError: no such layer.
        """
        return {layer.name: layer for layer in self.description.plan.layers}[name]


def _num_classes(
    outputs: Mapping[str, Loss], classes: Mapping[str, int], place: Place
) -> dict[str, int]:
    """The number of classes of each output."""
    sizes = {}
    for name, loss in outputs.items():
        size = classes.get(name, classes.get(loss.target))
        if size is None:
            known = ", ".join(classes) or "none"
            raise place.inside(name).error(
                f"the number of classes of its target {loss.target} is not known",
                f"known targets: {known}",
            )
        if size < 1:
            raise place.inside(name).error(f"its target has {size} classes")
        sizes[name] = int(size)
    return sizes
