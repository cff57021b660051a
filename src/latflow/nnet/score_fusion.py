"""Several networks as one: the mean of their scores.

Networks that make different errors are better together than each alone. Their layers
stand side by side in one network, so that it is decoded, streamed, served, exported
and trained on like any other.

Source: Kaldi `steps/nnet3/decode_score_fusion.sh --average true`, which runs the
networks one by one and averages matrices.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.nnet.described import fused_layer
from latflow.nnet.description import NetworkDescription
from latflow.nnet.graph import DATA, LayerDescription
from latflow.nnet.layers.simple import Linear, LinearOptions
from latflow.nnet.model_dir import (
    TREE,
    AcousticNetwork,
    check_is_none_of,
    copy_tree,
    load_model,
    read_priors,
    save_model,
)
from latflow.nnet.network import Network

#: What the models' meta.json must agree in, beside the tree.
_SHARED = ("dim_in", "subsampling", "scores", "normalization")


def fuse_models(folders: Sequence[str | Path], out_dir: str | Path) -> None:
    """Write a model folder whose scores are the mean of several models'.

    The layers of model k are named `n<k>_<layer>`; those that only other outputs need
    are left out. The output is one linear layer behind all, so that scores are equal to
    the mean of the models' but for rounding (of cross-entropy: before the softmax).
    Priors are the geometric mean of theirs. All else is that of the first model;
    `fused` in meta.json names them all.

    Args:
        folders: of two or more models that read the same features and score the pdfs of
            one tree, each by an output that is a linear layer.
        out_dir: the new model folder; `final.mdl` and `tree` go with it.

    Raises:
        UserError: a folder is broken, the models do not fit each other, or `out_dir` is
            one of them.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2:
        raise UserError("one model is not to be fused", remedy="name two or more")
    check_is_none_of(out_dir, paths)
    models = [load_model(path) for path in paths]
    for path, model in zip(paths[1:], models[1:], strict=True):
        _check_pair(paths[0], models[0], path, model)
    decoded = [linear_output(model.network.description) for model in models]
    name, first = decoded[0].name, models[0]
    description = NetworkDescription.from_config(_config(models, decoded))
    classes = {name: next(iter(first.network.outputs.values())).num_classes}
    fused = Network(description, first.network.dim_in, classes)
    weights: dict[str, Tensor] = {}
    for number, model in enumerate(models, 1):
        weights |= _renamed(model.network.state_dict(), number)
    weights |= _mean_map(models, decoded)
    fused.load_state_dict({key: weights[key] for key in fused.state_dict()})
    meta = {
        **first.meta,
        "num_parameters": fused.num_parameters,
        "fused": [path.name for path in paths],
    }
    with atomic_directory(out_dir) as folder:
        save_model(folder, fused, description, _mean_priors(paths), meta)
        copy_tree(paths[0], folder)


def _check_pair(
    first_path: Path, first: AcousticNetwork, path: Path, model: AcousticNetwork
) -> None:
    """Refuse a model that cannot stand beside the first."""
    for key in _SHARED:
        if first.meta.get(key) != model.meta.get(key):
            raise UserError(
                f"{key} is {model.meta.get(key)}, that of {first_path} "
                f"{first.meta.get(key)}",
                file=path / "meta.json",
                remedy="fuse networks of the same features and kind of training",
            )
    if first.network.description.repeats_edges != (
        model.network.description.repeats_edges
    ):
        what = f"edges are not those of {first_path}"
        raise UserError(what, file=path / "network.yaml")
    for name in TREE:
        own, other = path / name, first_path / name
        if not (own.is_file() and other.is_file()):
            continue
        if not filecmp.cmp(own, other, shallow=False):
            raise UserError(
                f"is not that of {first_path}: pdfs are others",
                file=own,
                remedy="train networks of one tree",
            )


def linear_output(description: NetworkDescription) -> LayerDescription:
    """Return the output that is decoded, if it is a linear layer.

    Raises:
        UserError: it is another, which cannot be fused.
    """
    plan = description.plan
    output = next(layer for layer in plan.layers if layer.name == plan.ends[0])
    options = output.options
    is_linear = (
        output.layer_class is Linear
        and isinstance(options, LinearOptions)
        and options.activation == "none"
        and not options.semi_orthogonal
    )
    if not is_linear:
        raise output.location.error(
            "scores of such an output cannot be averaged by a network",
            "give it the class output, without activation",
        )
    return output


def _config(
    models: Sequence[AcousticNetwork], decoded: Sequence[LayerDescription]
) -> dict[str, Any]:
    """Return the description of the networks side by side."""
    layers: dict[str, Any] = {}
    pairs = list(zip(models, decoded, strict=True))
    for number, (model, output) in enumerate(pairs, 1):
        config = model.network.description.config
        for layer in model.network.description.plan.behind(output.name)[:-1]:
            given = dict(config["layers"][layer.name])
            given["from"] = _sources(number, layer)
            for key in ("reuse", "initial_state"):
                if (other := getattr(layer, key)) is not None:
                    given[key] = fused_layer(number, other)
            layers[fused_layer(number, layer.name)] = given
    output = dict(models[0].network.description.config["layers"][decoded[0].name])
    numbered = enumerate(decoded, 1)
    output["from"] = [name for pair in numbered for name in _sources(*pair)]
    output.pop("reuse", None)
    output["bias"] = any(_map_of(*pair).bias is not None for pair in pairs)
    layers[decoded[0].name] = output
    described = [model.network.description for model in models]
    texts = [description.text or "a network" for description in described]
    return {
        "description": f"Mean of the scores of: {'; '.join(texts)}",
        "edges": "repeat" if described[0].repeats_edges else "zeros",
        "layers": layers,
    }


def _sources(number: int, layer: LayerDescription) -> list[str]:
    """Return the inputs of a layer of model `number` by their new names."""
    return [x if x == DATA else fused_layer(number, x) for x in layer.inputs]


def _renamed(state: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return parameters and statistics by the new names of their layers."""
    start = "body.layers."
    return {
        f"{start}{fused_layer(number, key.removeprefix(start))}": value
        for key, value in state.items()
    }


def _mean_map(
    models: Sequence[AcousticNetwork], decoded: Sequence[LayerDescription]
) -> dict[str, Tensor]:
    """Return weights and offsets of the output behind all networks."""
    maps = [_map_of(*pair) for pair in zip(models, decoded, strict=True)]
    start, share = f"body.layers.{decoded[0].name}.map.", 1.0 / len(models)
    found = {f"{start}weight": torch.cat([m.weight for m in maps], 1) * share}
    offsets: list[Tensor] = [m.bias for m in maps if m.bias is not None]
    if offsets:
        found[f"{start}bias"] = torch.stack(offsets).sum(0) * share
    return found


def _map_of(model: AcousticNetwork, output: LayerDescription) -> nn.Linear:
    """Return weights and offsets of a model's output."""
    module = model.network.body.module_of(output)
    assert isinstance(module, Linear)
    assert isinstance(module.map, nn.Linear)
    return module.map


def _mean_priors(paths: Sequence[Path]) -> np.ndarray | None:
    """Return the geometric mean of the models' priors; None where one has none."""
    shares = [found for path in paths if (found := read_priors(path)) is not None]
    if len(shares) < len(paths):
        return None
    return np.exp(np.mean(np.log(np.maximum(shares, np.finfo(np.float32).tiny)), 0))
