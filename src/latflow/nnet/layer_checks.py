"""What layers of a network description cannot be, where they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from latflow.nnet.described import OutputLoss
from latflow.nnet.graph import DATA, PREVIOUS, LayerDescription, Plan
from latflow.nnet.layer import Layer
from latflow.nnet.layers.decoder import AttentionDecoder
from latflow.nnet.layers.recurrent import RecurrentOptions
from latflow.nnet.layers.spectral import MelOptions
from latflow.nnet.options import Location, nearest

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CONTAINER = nn.ModuleDict()  # what will hold the layers, by name


def check_name(name: Any, location: Location) -> None:
    """Refuse a name that cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "letters, digits, _ and -, a letter first"
        raise location.error(f"{name!r} cannot be a layer's name", hint)
    # layers are attributes of a torch container, beside its own methods
    if name == DATA or hasattr(_CONTAINER, name):
        raise location.error(
            f"{name} cannot be a layer's name", "it is taken: choose another"
        )


def check_sources(
    layer: LayerDescription, layers: Mapping[str, LayerDescription], *, in_loop: bool
) -> None:
    """Refuse a layer that reads, or begins with the state of, what is not there."""
    for source in layer.inputs:
        is_before = source.startswith(PREVIOUS)
        if is_before and not in_loop:
            what = f"{source} is for layers inside a layer of class loop"
            raise layer.location.error(what, "move it into one")
        name = source.removeprefix(PREVIOUS)
        if name not in layers and (name != DATA or is_before):
            hint = nearest(source, (DATA, *layers))
            raise layer.location.error(f"from names no layer: {source}", hint)
    if (name := layer.initial_state) is None:
        return
    having = [one.name for one in layers.values() if one.layer_class.HAS_STATE]
    if in_loop:
        raise layer.location.error("initial_state inside a loop", "leave it out")
    if not layer.layer_class.HAS_STATE:
        what = f"class {layer.class_name} has no initial_state"
        raise layer.location.error(what, "it is of class rec")
    if name not in having or name == layer.name:
        what = f"initial_state names no layer of class rec: {name}"
        others = [one for one in having if one != layer.name]
        raise layer.location.error(what, nearest(name, others) if others else None)


def check_in_loop(layer: LayerDescription) -> None:
    """Refuse a layer that cannot be computed frame by frame."""
    if not layer.layer_class.IN_LOOPS:
        raise layer.location.error(
            f"class {layer.class_name} does not work inside a loop",
            "move it outside, before or behind the loop",
        )
    options = layer.options
    if isinstance(options, RecurrentOptions) and (
        options.direction != "forward" or options.unit == "associative"
    ):
        raise layer.location.error(
            "inside a loop a layer of class rec continues from frame to frame",
            "set direction: forward, and unit: lstm or gru",
        )


def check_decoder(
    found: type[Layer], loss: OutputLoss | None, location: Location
) -> None:
    """Refuse a decoder without its loss, and this loss of another layer."""
    has_loss = loss is not None and loss.name == "attention"
    if found is AttentionDecoder and not has_loss:
        raise location.error(
            "class attention_decoder is an output", "add loss: attention"
        )
    if has_loss and found is not AttentionDecoder:
        raise location.error(
            "loss attention is of a decoder", "set class: attention_decoder"
        )


def check_energies(
    layer: LayerDescription, layers: Mapping[str, LayerDescription]
) -> None:
    """Refuse what may be negative before `pcen`, whose roots then are NaN.

    A user's own classes are trusted.
    """
    for name in layer.inputs:
        source = layers.get(name)  # None: the features, which are logarithms
        if source is not None:
            if "." in source.class_name:
                continue
            if isinstance(source.options, MelOptions) and not source.options.log:
                continue
        raise layer.location.error(
            f"class pcen reads energies, which {name} does not give",
            "let it read a layer of class mel with log: false",
        )


def check_context(plan: Plan) -> None:
    """Refuse layers that cannot use up frames of context."""
    for layer in plan.layers:
        if not layer.layer_class.USES_CONTEXT:
            raise layer.location.error(
                f"class {layer.class_name} does not work with edges: repeat",
                "set edges to zeros, or take layers that see some frames around",
            )
        if layer.inside is not None:
            check_context(layer.inside)
