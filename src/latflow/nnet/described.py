"""Facts of networks that are read without torch: subsampling and losses.

Frame subsampling, feature frames for one output frame, is a property of the network,
which says it in the `meta.json` of its model folder. Everything that is made of a
network's scores (alignments, lattices, times) has a frame where the features have as
many.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from latflow.files import read_json, write_text
from latflow.nnet.options import PoolOptions, PretrainedOptions, SubsampleOptions
from latflow.options import Options
from latflow.yaml_files import read_yaml

#: Targets of losses that have one of their own.
DEFAULT_TARGETS = {"attention": "unit", "ce": "pdf", "ctc": "label", "lfmmi": "pdf"}


#: A file with a description (`latflow.nnet.description`), or what stands in it.
Described = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class OutputLoss:
    """The criterion that makes a layer an output.

    Attributes:
        name: the criterion.
        target: the name of the labels, as the training data call them; of `mse` that
            of the features.
        scale: factor of the loss in the sum over outputs.
    """

    name: str
    target: str
    scale: float

    @property
    def is_decodable(self) -> bool:
        """Return whether it can be decoded: it scores a tree's pdfs, or units."""
        if self.name == "ce":
            return self.target == "pdf"
        return self.name in {"attention", "ctc", "lfmmi"}


def frame_subsampling(model_dir: str | Path) -> int:
    """Return the frames of the features for one of a system's scores.

    Args:
        model_dir: folder of a system; 1 for any but a network's.

    Raises:
        UserError: a network's `meta.json` is missing or garbled.
    """
    folder = Path(model_dir)
    if not (folder / "network.yaml").is_file():
        return 1
    what, remedy = "what is known of a network", "train the network again"
    return read_json(
        folder / "meta.json", lambda meta: int(meta.get("subsampling", 1)), what, remedy
    )


# Option of a layer's class that is its own subsampling; classes that are not named here
# may have a `stride`, of 1 by default.
_FACTORS: dict[str, tuple[type[Options], str]] = {
    "subsample": (SubsampleOptions, "factor"),
    "pool": (PoolOptions, "stride"),
    "pretrained": (PretrainedOptions, "stride"),
}


def described_subsampling(source: Described) -> int:
    """Return the subsampling of the network that a file describes.

    Nothing else of the description is checked: an invalid layer counts as 1.

    Raises:
        UserError: it is not YAML.
    """
    layers = _layers_of(_read_config(source))
    ends = [name for name, layer in layers.items() if _is_output(layer)]
    return _rate_of(ends[0], layers, frozenset()) if ends else 1


def described_outputs(source: Described) -> dict[str, OutputLoss]:
    """Return the losses of the network that a file describes, the decoded output first.

    Nothing else of the description is checked.

    Raises:
        UserError: it is not YAML.
    """
    config = _read_config(source)
    found = {}
    for name, layer in _layers_of(config).items():
        if _is_output(layer):
            loss = str(layer.get("loss", "ce"))
            target = str(layer.get("target") or DEFAULT_TARGETS.get(loss, ""))
            found[str(name)] = OutputLoss(loss, target, 1.0)
    named = str(config.get("decode"))
    possible = [name for name, loss in found.items() if loss.is_decodable]
    first = named if named in found else next(iter(possible), None)
    ordered = [first, *(n for n in found if n != first)] if first else [*found]
    return {name: found[name] for name in ordered}


def described_sample_rates(source: Described) -> dict[str, int]:
    """Return the sample rates that layers of a network are for, Hz, by layer.

    Raises:
        UserError: it is not YAML.
    """
    rates = _given(source, "sample_rate")
    return {name: rate for name, rate in rates.items() if isinstance(rate, int)}


def described_licences(source: Described) -> list[str]:
    """Return the texts of the licences of pretrained encoders in a trained network.

    Raises:
        UserError: it is not YAML.
    """
    return list(dict.fromkeys(map(str, _given(source, "licence").values())))


def described_parts(source: Described) -> dict[str, str]:
    """Return the features that layers take of those side by side, by layer.

    Raises:
        UserError: it is not YAML.
    """
    given = _given(source, "features", {"slice"})
    return {name: str(features) for name, features in given.items()}


def described_layers(source: Described, behind: str | None = None) -> list[str]:
    """Return the names of a network's layers that share no other's parameters.

    Args:
        source: the description.
        behind: a layer; those that it needs, and itself. None for all.

    Raises:
        UserError: it is not YAML.
    """
    layers = _layers_of(_read_config(source))
    needed = set(layers) if behind is None else _needed_by(behind, layers)
    return [
        str(name)
        for name, layer in layers.items()
        if name in needed and isinstance(layer, Mapping) and "reuse" not in layer
    ]


def fused_layer(number: int, layer: str) -> str:
    """Return the name of a layer of model `number`, from 1, in a fused network."""
    return f"n{number}_{layer}"


def write_description(path: str | Path, config: Mapping[str, Any]) -> None:
    """Write a description as a file; one that is there alike stays unchanged."""
    path = Path(path)
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def _read_config(source: Described) -> Mapping[str, Any]:
    """Return a description; empty where it is not a mapping."""
    config = source if isinstance(source, Mapping) else read_yaml(source)
    return config if isinstance(config, Mapping) else {}


def _layers_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the layers of a description; none where they are not a mapping."""
    layers = config.get("layers")
    return layers if isinstance(layers, Mapping) else {}


def _given(
    source: Described, option: str, classes: Collection[str] = ()
) -> dict[str, Any]:
    """Return an option of the layers that give it, of some classes or of all."""
    return {
        str(name): layer[option]
        for name, layer in _layers_of(_read_config(source)).items()
        if isinstance(layer, Mapping)
        and option in layer
        and (not classes or layer.get("class") in classes)
    }


def _is_output(layer: Any) -> bool:
    is_layer = isinstance(layer, Mapping)
    return is_layer and (layer.get("class") == "output" or "loss" in layer)


def _rate_of(name: str, layers: Mapping[str, Any], above: frozenset[str]) -> int:
    """Return the frames of the features for one frame of a layer.

    Args:
        name: of the layer; a name of no layer is that of the features.
        layers: by name, in the order of the file.
        above: layers that this one feeds, which it cannot be fed by.
    """
    layer = layers.get(name)
    if not isinstance(layer, Mapping) or name in above:
        return 1
    options = layers.get(str(layer.get("reuse", name)), layer)
    first = _sources(name, layers)[0]
    own = _factor_of(options) if isinstance(options, Mapping) else 1
    return own * _rate_of(first, layers, above | {name})


def _needed_by(name: str, layers: Mapping[str, Any]) -> set[str]:
    """Return a layer and those that its scores depend on."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        layer = layers.get(name)
        if name in found or not isinstance(layer, Mapping):
            continue
        found.add(name)
        others = (str(layer.get(key, "")) for key in ("reuse", "initial_state"))
        waiting += [*_sources(name, layers), *others]
    return found


def _sources(name: str, layers: Mapping[str, Any]) -> list[str]:
    """Return what feeds a layer: one name or more, perhaps of no layer."""
    names = list(layers)
    previous = names[names.index(name) - 1] if names[0] != name else ""
    source = layers[name].get("from", previous) or previous
    return [str(x) for x in (source if isinstance(source, list) else [source])]


def _factor_of(layer: Mapping[str, Any]) -> int:
    """Return the input frames for one output frame of a layer."""
    inside = layer.get("layers")
    if isinstance(inside, Mapping) and inside:
        end = "output" if "output" in inside else list(inside)[-1]
        repeat = layer.get("repeat", 1)
        rate = _rate_of(end, inside, frozenset())
        return rate**repeat if isinstance(repeat, int) else rate
    model, key = _FACTORS.get(str(layer.get("class", "")), (None, "stride"))
    default = 1 if model is None else model.model_fields[key].default
    factor = layer.get(key, default)
    return factor if isinstance(factor, int) else 1
