"""Network descriptions: named layers with class, inputs and options, read from YAML.

    description: two layers and an output
    layers:
      wide: {class: linear, from: data, size: 512, activation: relu}
      deep: {class: linear, size: 512, activation: relu}
      output: {class: output}

`from` names one layer or several (a list), wherever they stand in the file; without it
the input is the layer before, for the first layer `data`, the features. Outputs are the
layers of class `output` and all others with a `loss`. See docs/networks.md.

`decode: <layer>` beside `layers` names the output that is decoded, where it is not the
first that can be: one of the loss `lfmmi`, `ctc` or `attention`, or of `ce` with the
target `pdf`.

`edges: repeat` beside `layers` has the network see copies of the first and of the last
frame beyond an utterance's ends, as Kaldi's do, and real frames beyond a chunk's; with
`zeros`, the default, each layer sees zeros there.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from latflow.errors import UserError
from latflow.nnet.described import DEFAULT_TARGETS, OutputLoss
from latflow.nnet.encoders import described as described_encoder
from latflow.nnet.graph import (
    DATA,
    PREVIOUS,
    LayerDescription,
    Plan,
    SubnetworkOptions,
)
from latflow.nnet.layer import Layer
from latflow.nnet.layer_checks import (
    check_context,
    check_decoder,
    check_energies,
    check_in_loop,
    check_name,
    check_sources,
)
from latflow.nnet.layers.decoder import AttentionDecoder
from latflow.nnet.layers.simple import Linear, SliceOptions
from latflow.nnet.layers.spectral import Pcen
from latflow.nnet.loops import LoopOptions
from latflow.nnet.options import Location, check_keys, nearest, read_layer_options
from latflow.nnet.registry import layer_class
from latflow.options import Options
from latflow.text_files import read_lines
from latflow.yaml_files import read_yaml

# A line of Kaldi's xconfig files, or of nnet3's configs.
_KALDI = re.compile(
    r"(input|output|[\w-]+-(layer|component)|component|[a-z]+-node|dim-range-node)"
    r"\s+[\w-]+\s*=.*"
)
_COMMON = (
    *("class", "from", "initial_state", "reuse"),
    *("loss", "target", "loss_scale"),
)


class _LossOptions(Options):
    """Options of a layer that is an output."""

    loss: Literal["attention", "ce", "ctc", "lfmmi", "mse"] = "ce"
    """the criterion that makes it an output"""
    target: str | None = None
    """the labels that the loss is taken against; those of the loss where it is None"""
    loss_scale: Annotated[float, Field(ge=0)] = 1.0
    """factor of the loss in the sum"""


@dataclass(frozen=True)
class NetworkDescription:
    """A whole network, checked.

    Attributes:
        config: the description as it was given, to be written again.
        plan: its layers; `plan.ends` are the outputs, that which is decoded first, the
            others in the file's order.
        file: where it was read, if anywhere.
    """

    config: Mapping[str, Any]
    plan: Plan = field(repr=False)
    file: Path | None = None

    @property
    def text(self) -> str:
        """Return what the network is, in its author's words; may be empty."""
        return str(self.config.get("description", "")).strip()

    @property
    def repeats_edges(self) -> bool:
        """Tell if copies of the edge frames stand beyond the ends, else zeros."""
        return self.config.get("edges") == "repeat"

    @property
    def outputs(self) -> dict[str, OutputLoss]:
        """The loss of each output, that which is decoded first."""
        losses = {layer.name: layer.loss for layer in self.plan.layers}
        return {name: loss for name in self.plan.ends if (loss := losses[name])}

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> NetworkDescription:
        """Read a YAML file, or what would stand in it.

        Raises:
            UserError: no such file, no YAML, or a wrong description (names the layer
                and the key).
        """
        if isinstance(source, Mapping):
            return cls.from_config(source)
        path = Path(source)
        if not path.is_file():
            raise UserError(
                "no such network description", file=path, remedy="see config/networks/"
            )
        _refuse_kaldi(path)
        return cls.from_config(read_yaml(path), file=path)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, file: Path | None = None
    ) -> NetworkDescription:
        """Check a description that was read already.

        Raises:
            UserError: a wrong description (names the layer and the key).
        """
        location = Location(file)
        if not isinstance(config, Mapping):
            raise location.error(
                "the description must be a mapping with the key layers"
            )
        check_keys(config, ("decode", "description", "edges", "layers"), location)
        edges = config.get("edges", "zeros")
        if edges not in ("zeros", "repeat"):
            raise location.error(f"edges must be zeros or repeat, not {edges!r}")
        if "layers" not in config:
            raise location.error("key layers is missing")
        layers = _parse_layers(config["layers"], location)
        ends = tuple(name for name, layer in layers.items() if layer.loss)
        if not ends:
            hint = "add a layer of class output, or give one a loss"
            raise location.error("there is no output", hint)
        decoders = [n for n in ends if layers[n].layer_class is AttentionDecoder]
        if len(decoders) > 1:
            raise location.error(f"two decoders: {', '.join(decoders)}", "keep one")
        decoded = _decoded(config.get("decode"), layers, ends, location)
        ends = (decoded, *(name for name in ends if name != decoded))
        plan = _plan(layers, ends)
        if edges == "repeat":
            check_context(plan)
        return cls(copy.deepcopy(dict(config)), plan, file)

    def with_parts(self, parts: Mapping[str, int]) -> NetworkDescription:
        """Return the network that takes features apart by numbers, not by names.

        Layers of class `slice` that name `features` have `begin` and `size` instead.

        Args:
            parts: sizes of the features that stand side by side, in their order; empty
                where they are of one stream.

        Raises:
            UserError: a layer names features that are not among them.
        """
        config, begin, places = copy.deepcopy(dict(self.config)), 0, {}
        for name, size in parts.items():
            places[name] = {"begin": begin, "size": size}
            begin += size
        for layer in self.plan.layers:
            given = config["layers"][layer.name]
            if not isinstance(layer.options, SliceOptions) or "features" not in given:
                continue
            if layer.inputs != (DATA,):
                hint = "set from: data"
                raise layer.location.error("only data is made of features", hint)
            if clash := {"begin", "size"} & given.keys():
                raise layer.location.error(f"features and {clash.pop()}", "keep one")
            if (name := given.pop("features")) not in places:
                hint = nearest(name, places) if places else "it is of one stream"
                raise layer.location.error(f"no features {name} in data", hint)
            given |= places[name]
        return NetworkDescription.from_config(config, file=self.file)

    def decoded(self) -> NetworkDescription:
        """Return the network of the decoded output and of the layers that it needs."""
        layers = {
            layer.name: {
                **self.config["layers"][layer.name],
                "from": list(layer.inputs),  # the layer before may be gone
            }
            for layer in self.plan.behind(self.plan.ends[0])
        }
        config = {**self.config, "layers": layers}
        return NetworkDescription.from_config(config, file=self.file)

    def encoder_folders(self) -> list[str]:
        """Return the folders of pretrained encoders that layers name."""
        found = (layer["folder"] for layer in _pretrained(self.config["layers"]))
        return list(dict.fromkeys(found))

    def self_contained(self) -> NetworkDescription:
        """Return the network with what encoders are made of instead of folders.

        Raises:
            UserError: a folder is not that of an encoder.
        """
        config = copy.deepcopy(dict(self.config))
        for layer in _pretrained(config["layers"]):
            layer.update(described_encoder(layer.pop("folder")))
        return NetworkDescription.from_config(config, file=self.file)


def _pretrained(layers: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the layers, also in subnetworks, of encoders that are in folders."""
    for layer in layers.values():
        if layer.get("class") == "pretrained" and "folder" in layer:
            yield layer
        if isinstance(inside := layer.get("layers"), Mapping):
            yield from _pretrained(inside)


def _parse_layers(
    given: Any, location: Location, *, in_loop: bool = False
) -> dict[str, LayerDescription]:
    """Check all layers of a network or of a subnetwork, in the file's order."""
    if not isinstance(given, Mapping) or not given:
        raise location.error(f"layers must be a mapping of layers, not {given!r}")
    layers: dict[str, LayerDescription] = {}
    previous = DATA
    for name, options in given.items():
        check_name(name, location)
        here = location.inside(name)
        if not isinstance(options, Mapping):
            raise here.error("must be a mapping with the key class")
        layers[name] = _parse_layer(name, options, previous, given, here)
        previous = name
    for layer in layers.values():
        check_sources(layer, layers, in_loop=in_loop)
    return layers


def _parse_layer(
    name: str,
    given: Mapping[str, Any],
    previous: str,
    siblings: Mapping[str, Any],
    location: Location,
) -> LayerDescription:
    """Check one layer; `previous` is its default input."""
    reuse = given.get("reuse")
    source = _reused(reuse, siblings, location) if reuse is not None else given
    class_name = _class_name(source, location)
    found = layer_class(class_name, location)
    options = {k: v for k, v in given.items() if k not in _COMMON}
    if reuse is not None:
        if options or given.get("class", class_name) != class_name:
            key = next(iter(options), "class")
            hint = "only from, initial_state, loss, target and loss_scale are its own"
            raise location.error(
                f"{key} is that of {reuse}, whose parameters it shares", hint
            )
        options = {k: v for k, v in source.items() if k not in _COMMON}
    has_classes = _has_classes(class_name, source)
    checked = _options(found, options, location, has_classes=has_classes)
    loss = _loss(given, class_name, location)
    check_decoder(found, loss, location)
    state = given.get("initial_state")
    return LayerDescription(
        name,
        class_name,
        found,
        _inputs(given.get("from", previous), location),
        checked,
        has_classes,
        reuse,
        loss,
        location,
        _nested(checked, location),
        None if state is None else _string("initial_state", state, location),
    )


def _class_name(given: Mapping[str, Any], location: Location) -> str:
    if "class" not in given:
        raise location.error("key class is missing")
    return _string("class", given["class"], location)


def _string(key: str, value: Any, location: Location) -> str:
    """Return a value that must be a string."""
    if not isinstance(value, str):
        raise location.error(f"{key} must be a string, not {value!r}")
    return value


def _reused(
    reuse: Any, siblings: Mapping[str, Any], location: Location
) -> Mapping[str, Any]:
    """Return the description of the layer whose parameters are shared."""
    _string("reuse", reuse, location)
    source = siblings.get(reuse)
    if not isinstance(source, Mapping):
        hint = nearest(reuse, siblings)
        raise location.error(f"reuse names no layer: {reuse}", hint)
    if "reuse" in source:
        raise location.error(
            f"{reuse} reuses a layer itself", f"name {source['reuse']}"
        )
    return source


def _inputs(given: Any, location: Location) -> tuple[str, ...]:
    """Return the names of a layer's inputs."""
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) for name in names):
        raise location.error(
            f"from must be a layer's name or a list of them, not {given!r}"
        )
    return tuple(names)


def _has_classes(class_name: str, given: Mapping[str, Any]) -> bool:
    """Return whether a layer's size is its target's number of classes."""
    is_linear = class_name == "linear" and "loss" in given and "size" not in given
    return class_name == "output" or is_linear


def _options(
    found: type[Layer],
    given: Mapping[str, Any],
    location: Location,
    *,
    has_classes: bool,
) -> Options:
    """Check the options of a layer's class."""
    clash = set(_COMMON).intersection(found.OPTIONS.model_fields)
    if clash:
        raise location.error(
            f"its class has an option with a reserved name: {clash.pop()}"
        )
    names = list(found.OPTIONS.model_fields)
    if has_classes and found is Linear:
        names.remove("size")
    check_keys(given, (*_COMMON, *names), location)
    if "size" not in names and has_classes:
        given = {**given, "size": 1}  # known when the network is made
    return read_layer_options(found.OPTIONS, given, location)


def _nested(options: Options, location: Location) -> Plan | None:
    """Return the layers inside a subnetwork or a loop; None for other layers.

    The first end is `output` or the last one; the others are those that are read a
    frame later.
    """
    if not isinstance(options, SubnetworkOptions | LoopOptions):
        return None
    in_loop = isinstance(options, LoopOptions)
    layers = _parse_layers(options.layers, location, in_loop=in_loop)
    for layer in layers.values():
        if layer.loss:
            what = f"a loss inside a {'loop' if in_loop else 'subnetwork'}"
            raise layer.location.error(what, "move it outside")
        if in_loop:
            check_in_loop(layer)
    end = "output" if "output" in layers else list(layers)[-1]
    ends, needed, waiting = [end], set(), [end]
    while waiting:
        if (name := waiting.pop()) == DATA or name in needed:
            continue
        needed.add(name)
        for source in layers[name].needs:
            read = source.removeprefix(PREVIOUS)
            waiting.append(read)
            if source != read and read not in ends:
                ends.append(read)
    return _plan(layers, tuple(ends))


def _loss(
    given: Mapping[str, Any], class_name: str, location: Location
) -> OutputLoss | None:
    """Return the loss of an output; None for a hidden layer."""
    if class_name != "output" and "loss" not in given:
        for key in ("target", "loss_scale"):
            if key in given:
                raise location.error(f"{key} without a loss", "add loss: ce")
        return None
    values = {k: given[k] for k in _LossOptions.model_fields if k in given}
    options = read_layer_options(_LossOptions, values, location)
    target = options.target or DEFAULT_TARGETS.get(options.loss)
    if target is None:
        hint = "name features of nnet.features in target"
        raise location.error(f"loss {options.loss} without a target", hint)
    has_one = options.loss in {"attention", "ctc", "lfmmi"}
    if has_one and target != DEFAULT_TARGETS[options.loss]:
        hint = f"leave target out: it is {DEFAULT_TARGETS[options.loss]}"
        raise location.error(f"loss {options.loss} has no target {target}", hint)
    return OutputLoss(options.loss, target, options.loss_scale)


def _decoded(
    named: Any,
    layers: Mapping[str, LayerDescription],
    ends: tuple[str, ...],
    location: Location,
) -> str:
    """Return the output that is decoded; the first one where none can be."""
    outputs = {name: loss for name in ends if (loss := layers[name].loss)}
    possible = [name for name, loss in outputs.items() if loss.is_decodable]
    if named is not None and named not in possible:
        hint = f"name one of: {', '.join(possible)}" if possible else "leave it out"
        raise location.error(f"decode: {named!r} is not an output that can be", hint)
    return named or next(iter(possible), ends[0])


def _plan(layers: Mapping[str, LayerDescription], ends: tuple[str, ...]) -> Plan:
    """Order the layers for computation.

    Raises:
        UserError: layers in a circle, one whose result goes nowhere, or `pcen` behind
            what gives no energies.
    """
    ordered: dict[str, LayerDescription] = {}
    for name in ends:
        for layer in _sources_first(name, layers, ordered):
            ordered[layer.name] = layer
    for name, layer in layers.items():
        if name not in ordered:
            hint = "name it in a from, give it a loss, or delete it"
            raise layer.location.error("its result is used nowhere", hint)
        if layer.layer_class is Pcen:
            check_energies(layer, layers)
    return Plan(tuple(ordered.values()), ends)


def _sources_first(
    name: str,
    layers: Mapping[str, LayerDescription],
    done: Mapping[str, LayerDescription],
) -> Iterator[LayerDescription]:
    """Yield what a layer needs and is not done, however deep, and then the layer."""
    if name in done:
        return
    path = {name: iter(layers[name].needs)}  # each needs the next: what it still needs
    while path:
        last, needs = next(reversed(path.items()))
        source = next(needs, None)
        if source is None:
            del path[last]
            yield layers[last]
        elif source in path:
            names = [*path]
            circle = " <- ".join((*names[names.index(source) :], source))
            raise layers[source].location.error(
                f"layers feed each other in a circle: {circle}"
            )
        elif source != DATA and source not in done and not source.startswith(PREVIOUS):
            path[source] = iter(layers[source].needs)


def _refuse_kaldi(path: Path) -> None:
    """Refuse a network in Kaldi's own form, known by its first line."""
    lines = ((n, line.strip()) for n, line in read_lines(path))
    number, first = next((one for one in lines if one[1][:1] not in ("", "#")), (0, ""))
    if _KALDI.fullmatch(first):
        raise UserError(
            f"line {number}: {first.split()[0]} is of a network of Kaldi (xconfig or "
            "nnet3), not of a description in YAML",
            file=path,
            remedy="start from the nearest one in config/networks (docs/networks.md), "
            "or take over the trained model: latflow import-kaldi vosk",
        )
