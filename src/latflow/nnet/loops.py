"""Layers in a loop over frames, where each may read what others gave a frame before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from latflow.nnet.graph import DATA, PREVIOUS, LayerDescription, LayerGraph, Plan
from latflow.nnet.layer import Context, Layer, Padded, Shape
from latflow.nnet.layers.recurrent import reverse
from latflow.nnet.layers.simple import SliceOptions
from latflow.options import Options


class LoopOptions(Options):
    """Options of `Loop`."""

    layers: dict[str, Any]
    """the layers inside"""
    direction: Literal["forward", "backward"] = "forward"
    """way through time"""


class Loop(Layer):
    """A network that is computed frame by frame: a recurrent layer of your own.

    `data` inside is the input outside, and the result that of the layer `output`, or of
    the last one in the file. `prev:x` in a `from` is what the layer x gave for the
    frame before, zeros for the first frame (RETURNN's `rec` whose `unit` is a network).
    Inside may stand the classes `linear`, `activation`, `add`, `multiply`, `concat`,
    `slice`, `dropout`, `layer_norm`, `embedding`, and `rec` with `direction: forward`,
    which continues from its own state.

    Layers that are in no circle are computed for all frames at once.
    """

    OPTIONS = LoopOptions

    def __init__(self, shape: Shape, options: LoopOptions, plan: Plan) -> None:
        super().__init__(shape)
        self.is_backward = options.direction == "backward"
        self.end = plan.ends[0]
        sizes = _sizes(plan, shape.dim)
        sources = {source for layer in plan.layers for source in layer.inputs}
        delayed = sorted(x for x in sources if x.startswith(PREVIOUS))
        for layer in plan.layers:
            if layer.name not in sizes and f"{PREVIOUS}{layer.name}" in delayed:
                raise layer.location.error(
                    f"its size follows from nothing but {PREVIOUS}{layer.name}",
                    "let it read a layer with a size, of class linear or rec",
                )
        previous = {x: Shape(sizes[_read(x)]) for x in delayed}
        self.graph = LayerGraph(plan, shape, previous=previous)
        self.parts = _parts_of(plan)
        for layer in self.parts.looped:
            self.graph.module_of(layer).keeps_state = layer.layer_class.HAS_STATE
        self.shape = self.graph.shapes[self.end]
        self.context = Context(0, None) if self.is_backward else Context(None, 0)

    def forward(self, batch: Padded) -> Padded:
        """Compute the frames, from the first or from each sequence's last one."""
        if self.is_backward:
            turned = batch.with_values(reverse(batch.values, batch))
            result = self._run(turned)
            return batch.with_values(reverse(result.values, batch))
        return self._run(batch)

    def _run(self, batch: Padded) -> Padded:
        """Compute the frames from the first to the last."""
        results = {DATA: batch}
        self._compute(self.parts.before, results)
        if self.parts.looped:
            self._loop(results)
        self._compute(self.parts.after, results)
        return results[self.end]

    def _compute(
        self, layers: Iterable[LayerDescription], results: dict[str, Padded]
    ) -> None:
        """Add what layers give for all frames."""
        for layer in layers:
            _add_delayed(layer.inputs, results)
            results[layer.name] = self.graph.compute(layer, results)

    def _loop(self, results: dict[str, Padded]) -> None:
        """Add what the layers that are in a circle give, frame by frame."""
        batch, layers = results[DATA], self.parts.looped
        for layer in layers:
            _add_delayed(layer.inputs, results)
        given = {source for layer in layers for source in layer.inputs} & {*results}
        count, num_frames, _ = batch.values.shape
        frame = Padded(batch.values[:, :1], torch.ones(count, dtype=torch.int64), None)
        shapes = self.graph.shapes
        previous = {
            name: frame.with_values(batch.values.new_zeros(count, 1, shapes[name].dim))
            for name in (f"{PREVIOUS}{layer.name}" for layer in layers)
            if name in shapes
        }
        states: dict[str, torch.Tensor | None] = {}
        found: dict[str, list[torch.Tensor]] = {layer.name: [] for layer in layers}
        for t in range(num_frames):
            here = dict(previous)
            for name in given:
                here[name] = frame.with_values(results[name].values[:, t : t + 1])
            for layer in layers:
                name = layer.name
                here[name] = self.graph.compute(layer, here, states.get(name))
                found[name].append(here[name].values)
                if layer.layer_class.HAS_STATE:
                    states[name] = here[name].state
            previous = {name: here[name.removeprefix(PREVIOUS)] for name in previous}
        for name, values in found.items():
            results[name] = batch.with_values(torch.cat(values, 1))


@dataclass(frozen=True)
class _Parts:
    """The layers of a loop, each part in an order of computation.

    Attributes:
        before: those that depend on no circle.
        looped: those in a circle, or between two.
        after: those that no circle depends on.
    """

    before: tuple[LayerDescription, ...]
    looped: tuple[LayerDescription, ...]
    after: tuple[LayerDescription, ...]


def _parts_of(plan: Plan) -> _Parts:
    """Find the layers that have to be computed frame by frame."""
    before: dict[str, LayerDescription] = {}
    rest = {layer.name: layer for layer in plan.layers}
    number = -1
    while number != len(before):
        number = len(before)
        for name, layer in list(rest.items()):
            if {_read(x) for x in layer.inputs} <= {DATA, *before}:
                before[name] = rest.pop(name)
    looped: set[str] = set()
    waiting = [
        _read(source)
        for layer in rest.values()
        for source in layer.inputs
        if source.startswith(PREVIOUS)
    ]
    while waiting:
        name = waiting.pop()
        if name in rest and name not in looped:
            looped.add(name)
            waiting += [_read(source) for source in rest[name].inputs]
    return _Parts(
        tuple(before.values()),
        tuple(layer for name, layer in rest.items() if name in looped),
        tuple(layer for name, layer in rest.items() if name not in looped),
    )


def _read(source: str) -> str:
    """Return the layer that an input is of, now or a frame before."""
    return source.removeprefix(PREVIOUS)


def _add_delayed(sources: Sequence[str], results: dict[str, Padded]) -> None:
    """Add what known layers gave a frame before, where it is read."""
    for source in sources:
        if source not in results and _read(source) in results:
            batch = results[_read(source)]
            values = nn.functional.pad(batch.values[:, :-1], (0, 0, 1, 0))
            results[source] = batch.with_values(values)


def _sizes(plan: Plan, dim: int) -> dict[str, int]:
    """Return the numbers a frame of the layers of a loop, found without making them.

    What is read of the frame before may depend on itself: of layers whose inputs are of
    one size, any input that is known determines it. Layers whose size follows from
    nothing are left out.

    Args:
        plan: the layers inside.
        dim: numbers a frame of `data`.
    """
    sizes, number = {DATA: dim}, 0
    while number != len(sizes):
        number = len(sizes)
        for layer in plan.layers:
            size = _size(layer, [sizes.get(_read(x)) for x in layer.inputs])
            if layer.name not in sizes and size is not None:
                sizes[layer.name] = size
    return sizes


def _size(layer: LayerDescription, sizes: Sequence[int | None]) -> int | None:
    """Return the numbers a frame of a layer by those of its inputs, where known."""
    options = layer.options
    size = getattr(options, "projection", None) or getattr(options, "size", None)
    if size is not None:
        return size
    known = [one for one in sizes if one is not None]
    if layer.layer_class.COMBINE == "concat":
        begin = options.begin if isinstance(options, SliceOptions) else 0
        return sum(known) - begin if len(known) == len(sizes) else None
    return known[0] if known else None
