"""A trained acoustic model as a folder, complete for decoding and serving.

* `network.yaml`: the description, as training was given it
* `weights.safetensors`: parameters and running statistics, float32, by name
* `priors.npy`: float32 [K], shares of the first output's classes (if known)
* `meta.json`: features a frame, classes of the outputs, and what the caller adds
  (criterion, scales, parent, commit, versions, ...)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network

# log-prior of a class that never occurs: so high that no path through it survives, and
# small enough that sums over an utterance stay finite
_NEVER = float(np.sqrt(np.finfo(np.float32).max))
_FLOOR = 1e-10


@dataclass(frozen=True)
class AcousticNetwork:
    """A model folder, read.

    Attributes:
        network: in evaluation mode.
        log_priors: float32 [K] on the network's device; None where there are none.
        meta: the contents of meta.json.
    """

    network: Network
    log_priors: Tensor | None
    meta: Mapping[str, Any]

    @torch.no_grad()
    def log_likelihoods(
        self, features: Tensor, lengths: Tensor, *, prior_scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Scores for the decoder: log posterior - `prior_scale` x log prior.

        Args:
            features: [B, T, dim_in].
            lengths: integers [B].
            prior_scale: 0 gives log posteriors.

        Returns:
            (float32 [B, T', K] of the first output, its lengths [B]).

        Raises:
            ValueError: a prior scale but no priors.
        """
        logits, out_lengths = next(iter(self.network(features, lengths).values()))
        scores = functional.log_softmax(logits.float(), -1)
        if prior_scale == 0.0:
            return scores, out_lengths
        if self.log_priors is None:
            raise ValueError(
                "the model has no priors: estimate them, or scale them by 0"
            )
        return scores - prior_scale * self.log_priors, out_lengths


def save_model(
    folder: str | Path,
    network: Network,
    description: NetworkDescription,
    priors: np.ndarray | None,
    meta: Mapping[str, Any],
) -> None:
    """Write a model folder, whole or not at all.

    Args:
        folder: where; what stands there is replaced.
        network: the network.
        description: what it was made from.
        priors: [K], shares or counts of the first output's classes; made to sum to 1.
        meta: more for meta.json, values that JSON knows.

    Raises:
        ValueError: priors of another size, negative, not finite, or all zero.
    """
    num_classes = {name: o.num_classes for name, o in network.outputs.items()}
    if priors is not None:
        priors = _checked_priors(priors, next(iter(num_classes.values())))
    weights = {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in network.state_dict().items()
    }
    told = {**meta, "dim_in": network.dim_in, "classes": num_classes}
    with atomic_directory(folder) as temporary:
        config = yaml.safe_dump(dict(description.config), sort_keys=False)
        (temporary / "network.yaml").write_text(config, encoding="utf-8")
        save_file(weights, temporary / "weights.safetensors")
        if priors is not None:
            np.save(temporary / "priors.npy", priors)
        text = json.dumps(told, indent=2, ensure_ascii=False) + "\n"
        (temporary / "meta.json").write_text(text, encoding="utf-8")


def _checked_priors(priors: np.ndarray, num_classes: int) -> np.ndarray:
    """float32 [K] that sums to 1."""
    priors = np.asarray(priors, np.float64)
    if priors.shape != (num_classes,):
        raise ValueError(f"priors have shape {priors.shape}, classes are {num_classes}")
    total = priors.sum()
    if not np.isfinite(total) or total <= 0 or priors.min() < 0:
        raise ValueError("priors must be finite, not negative, and not all zero")
    return (priors / total).astype(np.float32)


def load_model(
    folder: str | Path, device: str | torch.device = "cpu"
) -> AcousticNetwork:
    """Read a model folder.

    Args:
        folder: as `save_model` writes it.
        device: where the network is to run.

    Raises:
        UserError: a file is missing or broken, or they do not belong together.
    """
    folder = Path(folder)
    for name in ("network.yaml", "weights.safetensors", "meta.json"):
        if not (folder / name).is_file():
            remedy = "name a folder that training has written"
            raise UserError("no such file", file=folder / name, remedy=remedy)
    meta = _read_meta(folder / "meta.json")
    description = NetworkDescription.load(folder / "network.yaml")
    network = Network(description, meta["dim_in"], meta["classes"])
    _load_weights(network, folder / "weights.safetensors")
    network.to(device).eval()
    log_priors = None
    if (folder / "priors.npy").is_file():
        num_classes = next(iter(network.outputs.values())).num_classes
        log_priors = _read_log_priors(folder / "priors.npy", num_classes).to(device)
    return AcousticNetwork(network, log_priors, meta)


def _read_meta(path: Path) -> dict[str, Any]:
    """Read meta.json."""
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"not readable as JSON: {error}", file=path) from error
    if not isinstance(meta, dict) or not {"dim_in", "classes"} <= meta.keys():
        raise UserError("dim_in and classes are missing: no model's", file=path)
    return meta


def _load_weights(network: Network, path: Path) -> None:
    """Read the parameters into a network."""
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        what = " ".join(str(error).split())
        remedy = "weights and network.yaml must be of the same training"
        raise UserError(f"does not fit: {what}", file=path, remedy=remedy) from error


def _read_log_priors(path: Path, num_classes: int) -> Tensor:
    """float32 [K] of log-priors; a class that never occurs is made impossible."""
    try:
        priors = _checked_priors(np.load(path), num_classes).astype(np.float64)
    except ValueError as error:
        raise UserError(str(error), file=path) from error
    is_known = priors > _FLOOR
    logs = np.where(is_known, np.log(np.maximum(priors, _FLOOR)), _NEVER)
    return torch.from_numpy(logs.astype(np.float32))
