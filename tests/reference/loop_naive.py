"""Loops of layers frame by frame, with no layer outside: the twin of `Loop`."""

from __future__ import annotations

import torch
from torch import Tensor

from latflow.nnet.layer import Padded


def run_loop(loop, values: Tensor) -> Tensor:
    """Run over one sequence [T, D]; returns [T, size].

    Layers are asked for when they are needed, in each frame anew.
    """
    described = {layer.name: layer for layer in loop.graph.plan.layers}
    before: dict[str, Tensor] = {}
    states: dict[str, tuple[Tensor, ...]] = {}
    rows = []

    def value(name, now):
        if name.startswith("prev:"):
            name = name.removeprefix("prev:")
            return before.get(name, values.new_zeros(loop.graph.shapes[name].dim))
        if name not in now:
            layer = described[name]
            now[name] = computed(layer, [value(x, now) for x in layer.inputs])
        return now[name]

    def computed(layer, given):
        match layer.class_name:
            case "add":
                return sum(given[1:], given[0])
            case "multiply":
                return torch.stack(given).prod(0)
        joined = torch.cat(given)
        module = loop.graph.module_of(layer)
        if layer.class_name == "rec":
            found, states[layer.name] = module.rnn(joined[None], states.get(layer.name))
            return found[0]
        one = torch.ones(1, dtype=torch.int64)
        return module(Padded(joined[None, None], one, None)).values[0, 0]

    for frame in values.flip(0) if loop.is_backward else values:
        now = {"data": frame}
        for name in described:
            value(name, now)
        before.update(now)
        rows.append(now[loop.end])
    return torch.stack(rows[::-1] if loop.is_backward else rows)
