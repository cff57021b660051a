"""Network descriptions: named layers with class, inputs and options, read from YAML.

    description: two layers and an output
    layers:
      wide: {class: linear, from: data, size: 512, activation: relu}
      deep: {class: linear, size: 512, activation: relu}
      output: {class: output}

`from` names one layer or several (a list), wherever they stand in the file; without it
the input is the layer before, for the first layer `data`, the features. Outputs are the
layers of class `output` and all others with a `loss`. See docs/networks.md.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from latflow.errors import UserError
from latflow.nnet.layer import Layer
from latflow.nnet.layers.simple import Linear
from latflow.nnet.options import (
    Option,
    Place,
    check_keys,
    check_value,
    fill_options,
    nearest,
)
from latflow.nnet.registry import layer_class

DATA = "data"  # the name of the features
LOSSES = ("ce",)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CONTAINER = nn.ModuleDict()  # what will hold the layers, by name
_COMMON = {
    "class": Option("str", "the layer's class"),
    "from": Option("str", "the input, or a list of inputs"),
    "reuse": Option("str", "the layer whose parameters this one shares"),
    "loss": Option("str", "the criterion that makes it an output", choices=LOSSES),
    "target": Option("str", "the labels that the loss is taken against", "pdf"),
    "loss_scale": Option("float", "factor of the loss in the sum", 1.0, 0.0),
}


@dataclass(frozen=True)
class Loss:
    """What makes a layer an output.

    Attributes:
        name: the criterion.
        target: the name of the labels, as the training data call them.
        scale: factor of the loss in the sum over outputs.
    """

    name: str
    target: str
    scale: float


@dataclass(frozen=True)
class LayerDescription:
    """One layer, checked.

    Attributes:
        name: its name.
        class_name: its class, as the description says.
        layer_class: the class itself.
        inputs: names of its inputs.
        options: all options of the class. `size` is None where it is to be the number
            of classes of the output's target.
        reuse: the layer whose module this one uses, or None.
        loss: None for a hidden layer.
        place: where it stands, for messages.
    """

    name: str
    class_name: str
    layer_class: type[Layer]
    inputs: tuple[str, ...]
    options: Mapping[str, Any]
    reuse: str | None
    loss: Loss | None
    place: Place


@dataclass(frozen=True)
class Plan:
    """Layers in an order in which they can be computed.

    Attributes:
        layers: each after its inputs and after the layer that it reuses.
        ends: the layers whose results are wanted.
    """

    layers: tuple[LayerDescription, ...]
    ends: tuple[str, ...]


@dataclass(frozen=True)
class NetworkDescription:
    """A whole network, checked.

    Attributes:
        config: the description as it was given, to be written again.
        plan: its layers; `plan.ends` are the outputs, in the file's order.
        file: where it was read, if anywhere.
    """

    config: Mapping[str, Any]
    plan: Plan = field(repr=False)
    file: Path | None = None

    @property
    def text(self) -> str:
        """What the network is, in its author's words; may be empty."""
        return str(self.config.get("description", "")).strip()

    @property
    def outputs(self) -> dict[str, Loss]:
        """The loss of each output."""
        losses = {layer.name: layer.loss for layer in self.plan.layers}
        return {name: loss for name in self.plan.ends if (loss := losses[name])}

    def pretraining(self, step: int) -> NetworkDescription:
        """The network of one step of layer-wise pretraining; see `nnet.pretraining`."""
        from latflow.nnet.pretraining import shallower  # which needs this class

        return shallower(self, step)

    @classmethod
    def load(cls, path: str | Path) -> NetworkDescription:
        """Read a YAML file.

        Raises:
            UserError: no such file, no YAML, or a wrong description (names the layer
                and the key).
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(
                "no such network description", file=path, remedy="see config/networks/"
            )
        try:
            config = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # noqa: S506
        except yaml.YAMLError as error:
            what = " ".join(str(error).split())
            raise UserError(f"not readable as YAML: {what}", file=path) from error
        return cls.from_config(config, file=path)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, file: Path | None = None
    ) -> NetworkDescription:
        """Check a description that was read already.

        Raises:
            UserError: a wrong description (names the layer and the key).
        """
        place = Place(file)
        if not isinstance(config, Mapping):
            raise place.error("the description must be a mapping with the key layers")
        check_keys(config, {"description": 0, "layers": 0}, place)
        if "layers" not in config:
            raise place.error("key layers is missing")
        layers = _parse_layers(config["layers"], place)
        ends = tuple(name for name, layer in layers.items() if layer.loss)
        if not ends:
            hint = "add a layer of class output, or give one a loss"
            raise place.error("there is no output", hint)
        return cls(copy.deepcopy(dict(config)), _plan(layers, ends), file)


class _UniqueKeys(yaml.SafeLoader):
    """YAML whose mappings name no key twice (PyYAML would keep the last silently)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Make a mapping; see `yaml.SafeLoader`."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen and key_node.tag != "tag:yaml.org,2002:merge":
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key_node.value} stands twice")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def _parse_layers(given: Any, place: Place) -> dict[str, LayerDescription]:
    """Check all layers of a network or of a subnetwork, in the file's order."""
    check_value("layers", Option("layers", "the layers"), given, place)
    layers, previous = {}, DATA
    for name, options in given.items():
        _check_name(name, place)
        here = place.inside(name)
        if not isinstance(options, Mapping):
            raise here.error("must be a mapping with the key class")
        layers[name] = _parse_layer(name, options, previous, given, here)
        previous = name
    for layer in layers.values():
        for source in layer.inputs:
            if source != DATA and source not in layers:
                hint = nearest(source, {DATA: 0, **layers})
                raise layer.place.error(f"from names no layer: {source}", hint)
    return layers


def _check_name(name: Any, place: Place) -> None:
    """Refuse a name that cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "letters, digits, _ and -, a letter first"
        raise place.error(f"{name!r} cannot be a layer's name", hint)
    # layers are attributes of a torch container, beside its own methods
    if name == DATA or hasattr(_CONTAINER, name):
        raise place.error(
            f"{name} cannot be a layer's name", "it is taken: choose another"
        )


def _parse_layer(
    name: str,
    given: Mapping[str, Any],
    previous: str,
    siblings: Mapping[str, Any],
    place: Place,
) -> LayerDescription:
    """Check one layer; `previous` is its default input."""
    reuse = given.get("reuse")
    source = _reused(reuse, siblings, place) if reuse is not None else given
    class_name = _class_name(source, place)
    found = layer_class(class_name, place)
    options = {k: v for k, v in given.items() if k not in _COMMON}
    if reuse is not None:
        if options or given.get("class", class_name) != class_name:
            key = next(iter(options), "class")
            hint = "only from, loss, target and loss_scale are its own"
            raise place.error(
                f"{key} is that of {reuse}, whose parameters it shares", hint
            )
        options = {k: v for k, v in source.items() if k not in _COMMON}
    return LayerDescription(
        name,
        class_name,
        found,
        _inputs(given.get("from", previous), place),
        _options(found, options, place, has_classes=_has_classes(class_name, source)),
        reuse,
        _loss(given, class_name, place),
        place,
    )


def _class_name(given: Mapping[str, Any], place: Place) -> str:
    """The class that a layer names."""
    if "class" not in given:
        raise place.error("key class is missing")
    return check_value("class", _COMMON["class"], given["class"], place)


def _reused(reuse: Any, siblings: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
    """The description of the layer whose parameters are shared."""
    check_value("reuse", _COMMON["reuse"], reuse, place)
    source = siblings.get(reuse)
    if not isinstance(source, Mapping):
        hint = nearest(reuse, siblings)
        raise place.error(f"reuse names no layer: {reuse}", hint)
    if "reuse" in source:
        raise place.error(f"{reuse} reuses a layer itself", f"name {source['reuse']}")
    return source


def _inputs(given: Any, place: Place) -> tuple[str, ...]:
    """The names of a layer's inputs."""
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) for name in names):
        raise place.error(
            f"from must be a layer's name or a list of them, not {given!r}"
        )
    return tuple(names)


def _has_classes(class_name: str, given: Mapping[str, Any]) -> bool:
    """Whether the layer's size is the number of classes of a target."""
    is_linear = class_name == "linear" and "loss" in given and "size" not in given
    return class_name == "output" or is_linear


def _options(
    found: type[Layer], given: Mapping[str, Any], place: Place, *, has_classes: bool
) -> dict[str, Any]:
    """Check the options of a layer's class and those of layers within it."""
    table = dict(found.OPTIONS)
    if has_classes and found is Linear:
        del table["size"]
    clash = table.keys() & _COMMON.keys()
    if clash:
        raise place.error(
            f"its class has an option with a reserved name: {clash.pop()}"
        )
    check_keys(given, {**_COMMON, **table}, place)
    options = fill_options(table, given, place)
    for name, option in table.items():
        if option.kind == "layers":
            options[name] = _nested(options[name], place)
    return {"size": None, **options} if has_classes else options


def _nested(given: Mapping[str, Any], place: Place) -> Plan:
    """The layers of a subnetwork; its result is that of `output`, or the last one."""
    layers = _parse_layers(given, place)
    for layer in layers.values():
        if layer.loss:
            raise layer.place.error("a loss inside a subnetwork", "move it outside")
    end = "output" if "output" in layers else list(layers)[-1]
    return _plan(layers, (end,))


def _loss(given: Mapping[str, Any], class_name: str, place: Place) -> Loss | None:
    """The loss of an output; None for a hidden layer."""
    if class_name != "output" and "loss" not in given:
        for key in ("target", "loss_scale"):
            if key in given:
                raise place.error(f"{key} without a loss", "add loss: ce")
        return None
    values = {}
    for key in ("loss", "target", "loss_scale"):
        value = given.get(key, "ce" if key == "loss" else _COMMON[key].default)
        values[key] = check_value(key, _COMMON[key], value, place)
    return Loss(values["loss"], values["target"], values["loss_scale"])


def _plan(layers: Mapping[str, LayerDescription], ends: tuple[str, ...]) -> Plan:
    """Order the layers for computation.

    Raises:
        UserError: layers in a circle, or one whose result goes nowhere.
    """
    ordered: dict[str, LayerDescription] = {}
    for name in ends:
        for layer in _sources_first(name, layers, ordered, ()):
            ordered[layer.name] = layer
    for name, layer in layers.items():
        if name not in ordered:
            hint = "name it in a from, give it a loss, or delete it"
            raise layer.place.error("its result is used nowhere", hint)
    return Plan(tuple(ordered.values()), ends)


def _sources_first(
    name: str,
    layers: Mapping[str, LayerDescription],
    done: Mapping[str, LayerDescription],
    path: tuple[str, ...],
) -> Iterator[LayerDescription]:
    """Yield what a layer needs, however deep, and then the layer."""
    if name == DATA or name in done:
        return
    layer = layers[name]
    if name in path:
        circle = " <- ".join((*path[path.index(name) :], name))
        raise layer.place.error(f"layers feed each other in a circle: {circle}")
    needed = (*layer.inputs, *((layer.reuse,) if layer.reuse else ()))
    for source in needed:
        yield from _sources_first(source, layers, done, (*path, name))
    if name not in done:
        yield layer
