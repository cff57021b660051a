"""Layers connected: the module that a plan becomes, and subnetworks made of such."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from latflow.nnet.description import DATA, LayerDescription, Plan
from latflow.nnet.initialise import initialise
from latflow.nnet.layer import Context, Layer, LayerError, Options, Shape
from latflow.nnet.options import Option, OptionTable
from latflow.nnet.padded import Padded


class LayerGraph(nn.Module):
    """The layers of a plan.

    Args:
        plan: the layers.
        shape: the shape of `data`.
        sizes: sizes of the layers whose option `size` is None, by layer.
        seed: each layer starts from its own stream of numbers, of the seed and the
            layer's name, so that a change elsewhere leaves it alone; None continues
            the present stream (layers inside a subnetwork).

    Attributes:
        layers: the modules, by layer; a layer that reuses another has none.
        shapes, contexts: what each layer gives, seen from `data`.

    Raises:
        UserError: shapes that do not fit (names the layer).
    """

    def __init__(
        self,
        plan: Plan,
        shape: Shape,
        sizes: Mapping[str, int] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.layers = nn.ModuleDict()
        self.shapes = {DATA: shape}
        self.contexts = {DATA: Context()}
        self._input_shapes: dict[str, Shape] = {}
        for layer in plan.layers:
            if seed is not None:
                start = [seed & 0xFFFFFFFF, zlib.crc32(layer.name.encode())]
                # not torch.manual_seed: that would reseed a GPU's generator too
                torch.default_generator.manual_seed(start[0] << 31 | start[1] >> 1)
            self._add(layer, sizes or {})

    def _add(self, layer: LayerDescription, sizes: Mapping[str, int]) -> None:
        """Build one layer, or take over the one that it reuses."""
        shape = self._joined_shape(layer)
        self._input_shapes[layer.name] = shape
        if layer.reuse is None:
            module = _build(layer, shape, sizes)
            self.layers[layer.name] = module
        else:
            module = self.module_of(layer)
            wanted = self._input_shapes[layer.reuse]
            if shape.dim != wanted.dim:
                raise layer.place.error(
                    f"its input has {shape.dim} numbers a frame, "
                    f"that of {layer.reuse}, whose parameters it shares, {wanted.dim}"
                )
        self.shapes[layer.name] = module.shape
        before = self.contexts[layer.inputs[0]]
        for source in layer.inputs[1:]:
            before = before.joined(self.contexts[source])
        self.contexts[layer.name] = before.then(module.context)

    def module_of(self, layer: LayerDescription) -> Layer:
        """The module that computes a layer."""
        module = self.layers[layer.reuse or layer.name]
        assert isinstance(module, Layer)
        return module

    def _joined_shape(self, layer: LayerDescription) -> Shape:
        """The shape of a layer's joined inputs."""
        shapes = [self.shapes[source] for source in layer.inputs]
        strides = [self.contexts[source].stride for source in layer.inputs]
        if len(set(strides)) > 1:
            told = ", ".join(
                map(" 1/".join, zip(layer.inputs, map(str, strides), strict=True))
            )
            raise layer.place.error(f"its inputs have different frame rates: {told}")
        dims = [shape.dim for shape in shapes]
        if layer.layer_class.COMBINE == "add":
            if len(set(dims)) > 1:
                raise layer.place.error(f"its inputs have unequal sizes: {dims}")
            return shapes[0]
        heights = {shape.dim // shape.channels for shape in shapes}
        channels = sum(shape.channels for shape in shapes) if len(heights) == 1 else 1
        return Shape(sum(dims), channels)

    def forward(self, batch: Padded) -> dict[str, Padded]:
        """Compute the plan's ends, by name."""
        results = {DATA: batch}
        for layer in self.plan.layers:
            inputs = [results[source] for source in layer.inputs]
            joined = _join(inputs, layer.layer_class.COMBINE)
            results[layer.name] = self.module_of(layer)(joined)
        return {name: results[name] for name in self.plan.ends}


def _build(layer: LayerDescription, shape: Shape, sizes: Mapping[str, int]) -> Layer:
    """Make the module of a layer, initialised."""
    options = dict(layer.options)
    if layer.name in sizes and options.get("size", 0) is None:
        options["size"] = sizes[layer.name]
    try:
        # a user's class is called in the same way as a built-in one
        module = layer.layer_class(shape, options)  # pyright: ignore[reportCallIssue]
    except LayerError as error:
        raise layer.place.error(str(error)) from error
    if layer.layer_class.__module__.startswith("latflow.nnet."):
        initialise(module)
    return module


def _join(inputs: list[Padded], how: str) -> Padded:
    """One batch of several inputs: their sum, or side by side."""
    first, *others = inputs
    if not others:
        return first
    values = [batch.values for batch in inputs]
    if how == "add":
        return first.with_values(torch.stack(values).sum(0))
    return first.with_values(torch.cat(values, 2))


class Subnetwork(Layer):
    """A network as a layer: `data` inside is the input outside.

    Its result is that of the layer `output`, or of the last one in the file.
    """

    STACK: ClassVar[str | None] = "repeat"
    OPTIONS: ClassVar[OptionTable] = {
        "layers": Option("layers", "the layers inside"),
        "repeat": Option("int", "copies one after another, each its own", 1, minimum=1),
    }

    def __init__(self, shape: Shape, options: Options) -> None:
        super().__init__(shape)
        self.copies = nn.ModuleList()
        (self.end,) = options["layers"].ends
        for _ in range(options["repeat"]):
            copy = LayerGraph(options["layers"], self.shape)
            self.copies.append(copy)
            self.shape = copy.shapes[self.end]
            self.context = self.context.then(copy.contexts[self.end])

    def forward(self, batch: Padded) -> Padded:
        """Run the copies."""
        for copy in self.copies:
            batch = copy(batch)[self.end]
        return batch
