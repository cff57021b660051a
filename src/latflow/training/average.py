"""The mean of several networks' parameters."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.nnet.model_dir import load_model, save_model


def average_states(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average parameters and running statistics of networks of one shape.

    Means are taken in float64. Whole numbers (counters) are those of the last network.

    Args:
        states: `state_dict`s, at least one.

    Raises:
        ValueError: none, or of networks that differ.
    """
    if not states:
        raise ValueError("no networks to average")
    shapes = {name: value.shape for name, value in states[-1].items()}
    for state in states:
        if {name: value.shape for name, value in state.items()} != shapes:
            raise ValueError("networks of different layers cannot be averaged")
    if len(states) == 1:
        return dict(states[0])
    return {name: _mean([s[name] for s in states]) for name in shapes}


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Mean of tensors of one shape."""
    last = values[-1]
    if not last.is_floating_point():
        return last
    total = torch.zeros_like(last, dtype=torch.float64)
    for value in values:
        total += value
    return (total / len(values)).to(last.dtype)


def average_models(folders: Sequence[str | Path], out_dir: str | Path) -> None:
    """Write a model folder with the mean parameters of several.

    All else (description, priors, meta) is that of the last; `averaged` in meta.json
    names them all.

    Args:
        folders: of models with the same layers.
        out_dir: the new model folder; `final.mdl` and `tree` go with it.

    Raises:
        UserError: a folder is broken, or the layers differ.
    """
    networks = [load_model(folder).network for folder in folders]
    try:
        mean = average_states([network.state_dict() for network in networks])
    except ValueError as error:
        what = f"{error}: {', '.join(map(str, folders))}"
        raise UserError(what, remedy="name models of one network") from error
    last = load_model(folders[-1])
    last.network.load_state_dict(mean)
    priors = Path(folders[-1]) / "priors.npy"
    shares = np.load(priors) if priors.is_file() else None
    meta = {**last.meta, "averaged": [str(folder) for folder in folders]}
    with atomic_directory(out_dir) as folder:
        save_model(folder, last.network, last.network.description, shares, meta)
        for name in ("final.mdl", "tree"):
            if (Path(folders[-1]) / name).is_file():
                shutil.copyfile(Path(folders[-1]) / name, folder / name)
