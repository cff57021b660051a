"""Networks of RETURNN as descriptions of ours.

Each of RETURNN's layers becomes one of ours, or two where it drops numbers of its input
(`dropout`). What has no counterpart and changes what the network computes is refused;
what does not (how parameters start, names of devices) is left out. Each key has a line
in the table of what became of it.

Source: https://github.com/rwth-i6/returnn, `returnn/tf/layers`; Zeyer, Alkhouli & Ney
2018, "RETURNN as a generic flexible neural toolkit", figure 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from latflow.nnet.returnn_layers import CLASSES, Fate, Keys, RefusedError, Row, finite

_LOSSES = ("ce", "ctc")
_BEFORE = "prev:"  # before a layer's name: what it gave for the frame before
# Keys that change nothing that is computed.
_WITHOUT_EFFECT = MappingProxyType(
    {
        "forward_weights_init": "parameters start as docs/networks.md says",
        "recurrent_weights_init": "parameters start as docs/networks.md says",
        "bias_init": "parameters start as docs/networks.md says",
        "param_device": "layers are where the training is",
        "is_output_layer": "outputs are layers with a loss",
        "register_as_extern_data": "nothing reads it",
        "out_type": "it follows from the layer",
        "n_out": "it follows from the input",
        "unroll": "it is a matter of speed",
        "darc1": "there is no such penalty here",
        "dropout_noise_shape": "numbers are dropped one by one",
        "back_prop": "it is a matter of speed",
        "compute_priors": "training.priors says where priors come from",
    }
)


@dataclass
class ConvertedNetwork:
    """A network as ours.

    Attributes:
        layers: of a network description.
        rows: what became of each key.
        frozen: layers that are not trained.
        l2: factor of each layer with one, by name.
        label_smoothing, focal: of the loss, where it has one.
        has_labels: whether layers read labels.
    """

    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    l2: dict[str, float] = field(default_factory=dict)
    label_smoothing: float = 0.0
    focal: float = 0.0
    has_labels: bool = False

    @property
    def losses(self) -> list[str]:
        """Losses of the outputs."""
        return [layer["loss"] for layer in self.layers.values() if "loss" in layer]

    @property
    def is_refused(self) -> bool:
        """Return whether a key cannot be done."""
        return any(row.fate == "refused" for row in self.rows)


def convert_network(
    given: Mapping[str, Any],
    window: int = 1,
    sparse: Mapping[str, int] = MappingProxyType({}),
) -> ConvertedNetwork:
    """Make a network of ours of one of RETURNN's.

    Args:
        given: RETURNN's layers by name.
        window: frames of the features that stand side by side at the input.
        sparse: numbers of classes of those of the data that are labels, by name.

    Returns:
        The network; whoever uses it looks at `is_refused` first.
    """
    converted = _Network(given, sparse=sparse).converted()
    if window > 1 and converted.layers:
        _put_window(converted, window)
    _convert_parts(converted)
    return converted


def _convert_parts(converted: ConvertedNetwork) -> None:
    """Make layers read features side by side, where there are several.

    Until now their inputs are `data` and `data:<name>`.
    """
    inputs = {one for layer in converted.layers.values() for one in layer["from"]}
    streams = sorted(one for one in inputs if one == "data" or _is_named(one))
    if streams == ["data"] or not any(map(_is_named, streams)):
        return
    parts = {}
    for stream in streams:
        features = _stream(stream)
        parts[stream] = _free(f"{features}_features", converted.layers)
        added = {"class": "slice", "from": ["data"], "features": features}
        converted.layers = {parts[stream]: added, **converted.layers}
        row = Row(stream, "renamed", f"features {features} of nnet.pasted, by slice")
        converted.rows.append(row)
    for name, layer in converted.layers.items():
        if name not in parts.values():
            layer["from"] = [parts.get(one, one) for one in layer["from"]]


def _put_window(converted: ConvertedNetwork, size: int) -> None:
    """Make all layers that read the features read windows of them."""
    name = _free("window", converted.layers)
    for layer in converted.layers.values():
        layer["from"] = [name if one == "data" else one for one in layer["from"]]
    first = {"class": "window", "from": ["data"], "size": size}
    converted.layers = {name: first, **converted.layers}


def _free(name: str, taken: Collection[str]) -> str:
    """Return a name that no layer has."""
    return name if name not in taken else _free(f"{name}_", taken)


class _Network:
    """The conversion of one network, or of a subnetwork."""

    def __init__(
        self,
        given: Mapping[str, Any],
        prefix: str = "",
        sparse: Mapping[str, int] = MappingProxyType({}),
        *,
        in_loop: bool = False,
    ) -> None:
        self._given = {str(name): layer for name, layer in given.items()}
        self._prefix, self._sparse, self._in_loop = prefix, sparse, in_loop
        self._names = _our_names(self._given)
        self._found = ConvertedNetwork()
        self._copies: dict[str, list[str]] = {}

    def converted(self) -> ConvertedNetwork:
        """Convert all layers that lead to an output, inputs first."""
        done: set[str] = set()
        waiting = self._ends()
        while waiting:
            name = waiting.pop(0)
            if name not in done:
                self._convert_with_inputs(name, done)
            waiting += self._read_before(done)
        for name in self._given.keys() - done:
            self._note(name, "left out", "leads to no output")
        return self._found

    def _read_before(self, done: Collection[str]) -> list[str]:
        """Return layers that are read a frame later alone, and are still to be done."""
        layers = [self._given[name] for name in done]
        sources = {x for one in layers if isinstance(one, Mapping) for x in _reads(one)}
        before = {x.removeprefix(_BEFORE) for x in sources if x.startswith(_BEFORE)}
        return sorted((before & self._given.keys()) - {*done})

    def _ends(self) -> list[str]:
        """Return the layers that others need not read."""
        ends = [
            name
            for name, layer in self._given.items()
            if isinstance(layer, Mapping)
            and (name == "output" or layer.get("loss"))
            and not layer.get("only_on_eval")
        ]
        if not ends:
            self._note("output", "refused", "no layer is an output")
        return ends

    def _convert_with_inputs(self, end: str, done: set[str]) -> None:
        """Convert a layer after those that it reads; a network may be of any depth."""
        path = {end: self._sources(end)}
        while path:
            name = next(reversed(path))
            source = next((x for x in path[name] if x not in done), None)
            if source is None:
                del path[name]
                done.add(name)
                self._try(name)
            elif source in path:
                self._note(source, "refused", "reads what it makes, in a loop")
            else:
                path[source] = self._sources(source)

    def _sources(self, name: str) -> Iterator[str]:
        """Yield the layers of the network that a layer reads."""
        layer = self._given[name]
        if _has_class(layer):
            yield from (x for x in _reads(layer) if x in self._given)

    def _try(self, name: str) -> None:
        """Convert one layer, or note why not."""
        layer = self._given[name]
        if not _has_class(layer):
            self._note(name, "refused", "no class is named")
            return
        try:
            self._convert(name, Keys(layer))
        except RefusedError as refusal:
            self._note(f"{name}.{refusal.key}", "refused", refusal.why)

    def _convert(self, name: str, keys: Keys) -> None:
        """Convert one layer and note what became of its keys."""
        kind = keys.take("class")
        convert = CLASSES.get(kind)
        if convert is None or (kind == "rnn_cell" and not self._in_loop):
            raise RefusedError("class", f"no layer of ours is like {kind}")
        rate = keys.real("dropout", 0.0)
        made = convert(keys)
        inputs = self._inputs(keys)
        if labels := self._labels_in(inputs):
            made = self._embedded(kind, keys, made, labels)
        if made is not None and isinstance(inside := made.get("layers"), Mapping):
            made["layers"] = self._nested(name, inside, in_loop=made["class"] == "loop")
        if made is not None and "initial_state" in made:
            made["initial_state"] = self._state_giver(made["initial_state"])
        if made is not None and "from" in made:
            inputs = self._expressed(name, made, inputs)
        if rate and kind != "dropout":
            inputs = [self._put_dropout(name, inputs, rate)]
            keys.rename("dropout", "a layer of class dropout before it")
        self._convert_common(name, kind, keys, made)
        is_alias = made is None and "loss" not in keys.used and len(inputs) == 1
        if is_alias and not self._in_loop:
            self._copies[name] = inputs
        else:
            made = made if made is not None else {"class": "concat"}
            self._found.layers[self._names[name]] = {
                "class": made.pop("class"), "from": inputs, **made,
            }  # fmt: skip
        keys.check()
        for key, (fate, text) in keys.used.items():
            self._note(f"{name}.{key}", fate, text)

    def _nested(
        self, name: str, inside: Mapping[str, Any], *, in_loop: bool
    ) -> dict[str, Any]:
        """Convert the layers of a subnetwork or a loop."""
        prefix = f"{self._prefix}{name}/"
        below = _Network(inside, prefix, in_loop=in_loop).converted()
        self._found.rows += below.rows
        if below.frozen or below.losses:
            key = "unit" if in_loop else "subnetwork"
            raise RefusedError(key, "trainable and losses inside it")
        self._found.l2 |= {f"{name}/{x}": factor for x, factor in below.l2.items()}
        return below.layers

    def _embedded(
        self,
        kind: str,
        keys: Keys,
        made: dict[str, Any] | None,
        labels: Collection[str],
    ) -> dict[str, Any] | None:
        """Return what reads labels: an embedding in the place of a linear layer."""
        if made is None:
            return None
        if made["class"] != "linear" or len(_sources(keys.given)) > 1:
            raise RefusedError("from", f"labels read by {kind}: let linear read them")
        if keys.given.get("dropout"):
            raise RefusedError("dropout", "dropout of labels")
        (name,) = labels
        keys.rename("class", "embedding, of labels in nnet.hdf5.<name>.sparse")
        if "with_bias" in keys:
            keys.leave_out("with_bias", "it is in the vector of each class")
        self._found.has_labels = True
        return {
            "class": "embedding",
            "classes": self._sparse[name],
            "size": made["size"],
            "activation": made["activation"],
        }

    def _labels_in(self, inputs: Collection[str]) -> list[str]:
        """Return the data among a layer's inputs that are labels."""
        given = [_stream(one) for one in inputs if one == "data" or _is_named(one)]
        return [one for one in given if one in self._sparse]

    def _state_giver(self, name: str) -> str:
        """Return the layer, by our name, whose last state another begins with."""
        layer = self._given.get(name)
        given = layer if isinstance(layer, Mapping) else {}
        is_rec = given.get("class") == "rec" and isinstance(given.get("unit", ""), str)
        if self._in_loop or not is_rec:
            raise RefusedError(
                "initial_state", f"{name} is not a layer of class rec here"
            )
        return self._names[name]

    def _expressed(
        self, name: str, made: dict[str, Any], inputs: list[str]
    ) -> list[str]:
        """Add the layers of an expression's parts; return what the last one reads."""
        found = []
        for part in made.pop("from"):
            if isinstance(part, int):
                if part >= len(inputs):
                    raise RefusedError("eval", f"it has no source({part})")
                found.append(inputs[part])
                continue
            below = self._expressed(name, part, inputs)
            taken = [*self._found.layers, *self._names.values()]
            added = _free(f"{self._names[name]}_part", taken)
            self._found.layers[added] = {
                "class": part.pop("class"), "from": below, **part,
            }  # fmt: skip
            found.append(added)
        return found

    def _convert_common(
        self, name: str, kind: str, keys: Keys, made: dict[str, Any] | None
    ) -> None:
        """Take what layers of all classes may have."""
        if keys.take("trainable", default=True) is False:
            self._found.frozen.append(self._names[name])
            keys.rename("trainable", "training.freeze")
        if factor := keys.real("L2", 0.0):
            self._found.l2[self._names[name]] = factor
            keys.rename("L2", "training.l2")
        loss = keys.take("loss", None)
        if loss is not None:
            self._convert_loss(loss, kind, keys, made)
        elif made is not None and made["class"] == "output" and self._is_inside(name):
            raise RefusedError("class", "softmax without a loss")
        if keys.take("initial_output", 0) not in (None, 0, "zeros"):
            raise RefusedError("initial_output", "it is zeros here")
        for key, reason in _WITHOUT_EFFECT.items():
            if key in keys and key not in keys.used:
                keys.leave_out(key, reason)

    def _is_inside(self, name: str) -> bool:
        """Tell a layer that is not the network's output by its name."""
        return bool(self._prefix) or name != "output"

    def _convert_loss(
        self, loss: Any, kind: str, keys: Keys, made: dict[str, Any] | None
    ) -> None:
        """Make a layer an output."""
        if loss not in _LOSSES or made is None or made["class"] != "output":
            raise RefusedError("loss", f"{loss} of a layer of class {kind}")
        target = keys.take("target", "classes")
        if target != "classes":
            raise RefusedError("target", f"other labels than classes: {target}")
        made["loss"] = loss
        given = keys.take("loss_opts", None) or {}
        if not isinstance(given, Mapping):
            raise RefusedError("loss_opts", f"{given!r} is not a dictionary")
        options = dict(given)

        def number(key: str, default: float) -> float:
            value = options.pop(key, default)
            return finite("loss_opts", default if value is None else value)

        scale = keys.real("loss_scale", 1.0) * number("scale", 1.0)
        if scale != 1.0:
            made["loss_scale"] = scale
        if smoothing := number("label_smoothing", 0.0):
            self._found.label_smoothing = smoothing
            keys.rename("loss_opts", "training.label_smoothing")
        if focal := number("focal_loss_factor", 0.0):
            self._found.focal = focal
            keys.rename("loss_opts", "training.focal")
        if options:
            raise RefusedError("loss_opts", f"no {', '.join(map(str, options))} here")

    def _inputs(self, keys: Keys) -> list[str]:
        """Return the layers that one reads, by our names."""
        found: list[str] = []
        for source in _sources(keys.given):
            name = source.removeprefix(_BEFORE)
            if source in ("data", "data:source" if self._in_loop else "data:data"):
                found.append("data")
            elif source != name and name in self._given and self._in_loop:
                found.append(f"{_BEFORE}{self._names[name]}")
            elif source in self._copies:
                found += self._copies[source]
            elif source in self._given:
                found.append(self._names[source])
            elif source.startswith("data:") and source != "data:classes":
                if self._prefix:
                    raise RefusedError("from", f"{source} inside a layer")
                found.append(source)
            elif source.startswith("data:"):
                raise RefusedError("from", f"other data than the features: {source}")
            else:
                raise RefusedError("from", f"{source} is not a layer")
        keys.take("from", None)  # refuses code
        if not found:
            raise RefusedError("from", "it reads nothing")
        return found

    def _put_dropout(self, name: str, inputs: list[str], rate: float) -> str:
        """Add the dropout that a layer applies to its input."""
        taken = [*self._found.layers, *self._names.values()]
        added = _free(f"{self._names[name]}_dropout", taken)
        layer = {"class": "dropout", "from": inputs, "rate": rate}
        self._found.layers[added] = layer
        return added

    def _note(self, key: str, fate: Fate, text: str) -> None:
        """Note what became of a key."""
        self._found.rows.append(Row(f"{self._prefix}{key}", fate, text))


def _is_named(source: str) -> bool:
    """Tell an input that is other data than the features."""
    return source.startswith("data:")


def _stream(source: str) -> str:
    """Return the name of the data that an input is."""
    return source.removeprefix("data:")


def _has_class(layer: object) -> bool:
    """Return whether an entry of a network is a layer."""
    return isinstance(layer, Mapping) and isinstance(layer.get("class"), str)


def _reads(layer: Mapping[str, Any]) -> list[str]:
    """Return the layers that one reads, or begins with the state of."""
    state = layer.get("initial_state")
    return [*_sources(layer), *([state] if isinstance(state, str) else [])]


def _sources(layer: Mapping[str, Any]) -> list[str]:
    """Return the layers that one reads, as RETURNN names them."""
    found = layer.get("from", "data")
    items = found if isinstance(found, list) else [found]
    return [item for item in items if isinstance(item, str)]


def _our_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Return names of ours for RETURNN's: letters, digits, _ and -."""
    names: dict[str, str] = {}
    for name in given:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        if not re.match(r"[A-Za-z_]", plain):
            plain = f"layer_{plain}"
        names[name] = _free(plain, names.values())
    return names
