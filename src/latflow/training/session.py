"""What trainings of all kinds have in common: data, first parameters, model folder.

Public: `Data`, `place_rank`, `start_network`, `adopt`, `growth_of`, `write_model`,
`num_kept`, `identity_of`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.pretraining import carry_over
from latflow.provenance import git_state, versions
from latflow.training.batches import BatchSource
from latflow.training.checkpoint import digest_of
from latflow.training.distributed import Backend
from latflow.training.growth import Growth
from latflow.training.normalisation import Normaliser
from latflow.training.priors import priors_of_labels, priors_of_posteriors
from latflow.training.sources import estimate_normaliser, open_batches, open_features
from latflow.training.targets import Targets, load_targets
from latflow.training.trainer import Result, Trainer

# What may change between two attempts at the same training.
_FREE = {
    "training": (
        "checkpoint_minutes",
        "elastic",
        "keep_checkpoints",
        "log_interval",
        "tensorboard",
    ),
    "data": ("prefetch", "on_the_fly"),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Data:
    """The data of a training, opened.

    Attributes:
        folders: of the frames of `train` and `dev`.
        labels: of `train` and `dev`, by the target's name.
        options: `data` and `seed`.
        normaliser: of the features.
        ledger: gets the utterances that cannot be used.
    """

    folders: Mapping[str, str]
    labels: Mapping[str, Targets]
    options: Mapping[str, Any]
    normaliser: Normaliser
    ledger: Ledger

    @classmethod
    def open(
        cls,
        folders: Mapping[str, str],
        labels_dir: str | Path,
        options: Mapping[str, Any],
        ledger: Ledger,
    ) -> Data:
        """Open frames and labels.

        Args:
            folders: of the frames of `train` and `dev`.
            labels_dir: holds a folder for each, of `write_targets`.
            options: a network system's, with `seed`.
            ledger: gets the utterances that cannot be used.
        """
        labels = {split: load_targets(Path(labels_dir) / split) for split in folders}
        normaliser = estimate_normaliser(folders["train"], options["data"])
        return cls(folders, labels, options, normaliser, ledger)

    @property
    def dim(self) -> int:
        """Features a frame."""
        return open_features(self.folders["train"], self.options["data"]).dim

    def batches(self, subsampling: int) -> tuple[BatchSource, BatchSource]:
        """Batches of training and of dev, for a network with this subsampling."""
        train, dev = (
            open_batches(
                self.folders[split],
                self.labels[split],
                self.options["data"],
                normaliser=self.normaliser,
                subsampling=subsampling,
                seed=self.options["seed"],
                ledger=self.ledger,
                is_training=split == "train",
            )
            for split in ("train", "dev")
        )
        return train, dev

    def priors(
        self, network: Network, kind: str, batches: BatchSource, backend: Backend
    ) -> np.ndarray:
        """Priors of the first output's classes; on all ranks.

        Args:
            network: trained.
            kind: `alignments` (the labels) or `posteriors` (the network's).
            batches: the training data.
            backend: the other ranks.
        """
        if kind == "alignments":
            target = next(iter(network.outputs.values())).loss.target
            return priors_of_labels(self.labels["train"][target])
        shares = chain.from_iterable(
            batches.epoch(epoch, rank=backend.rank, size=backend.size)
            for epoch in range(batches.options.partitions)
        )
        return priors_of_posteriors(network, shares, self.options["training"], backend)


def place_rank(device: str, backend: Backend) -> torch.device:
    """The device of this rank: of several GPUs, the one with its number.

    Args:
        device: `cpu` or `cuda`.
        backend: tells the number.
    """
    if device == "cpu":
        return torch.device("cpu")
    where = torch.device("cuda", backend.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(where)
    return where


def start_network(
    description: NetworkDescription, data: Data, seed: int, parent: str | None
) -> Network:
    """Make the network that a training starts from.

    Args:
        description: its layers.
        data: tells its features and classes.
        seed: of parameters that no parent has.
        parent: model folder whose parameters are taken, or None.

    Raises:
        UserError: the parent has no layer of these names and sizes.
    """
    classes = {name: s.num_classes for name, s in data.labels["train"].items()}
    network = Network(description, data.dim, classes, seed=seed)
    if parent is not None:
        adopt(network, parent)
    return network


def adopt(network: Network, parent: str | Path) -> None:
    """Take over the parameters of another network, by name, where shapes agree.

    Args:
        network: changed in place.
        parent: a model folder.

    Raises:
        UserError: none agrees.
    """
    new = carry_over(load_model(parent).network, network)
    if len(new) == len(network.state_dict()):
        raise UserError(
            "shares no layer's name and size with the new network",
            file=parent,
            remedy="name a parent with the same layers",
        )
    for name in new:
        log.warning("%s: not in the parent %s, starts anew", name, parent)


def growth_of(network: Network, options: Mapping[str, Any]) -> Growth | None:
    """Layer-wise pretraining of a network, if the options want it.

    Args:
        network: all of it.
        options: a network system's, with `seed`.

    Raises:
        UserError: there would be no epoch of the whole network.
    """
    epochs = options["training"]["pretraining"]
    if not epochs:
        return None
    growth = Growth(network, epochs, options["seed"])
    if growth.first_whole > options["training"]["epochs"]:
        raise UserError(
            f"pretraining takes {growth.first_whole - 1} epochs, but training has "
            f"{options['training']['epochs']}",
            remedy="raise training.epochs, or lower training.pretraining",
        )
    return growth


def write_model(
    out_dir: str | Path,
    network: Network,
    priors: np.ndarray,
    meta: Mapping[str, Any],
    *,
    result: Result,
    trainer: Trainer,
    ledger: Ledger,
    source_dir: str | Path,
) -> None:
    """Write a model folder with the record of its training.

    Args:
        out_dir: replaced as a whole.
        network: trained.
        priors: [K], of the first output's classes.
        meta: what this kind of training adds to meta.json: criterion, options, ...
        result: of the training.
        trainer: whose log is taken over.
        ledger: utterances that were not trained on.
        source_dir: folder whose `final.mdl` and `tree` are taken over.
    """
    info = {**asdict(result), "num_parameters": network.num_parameters}
    known = {**meta, **info, "versions": versions(), "commit": git_state()}
    with atomic_directory(out_dir) as folder:
        save_model(folder, network, network.description, priors, known)
        for name in ("final.mdl", "tree"):
            shutil.copyfile(Path(source_dir) / name, folder / name)
        shutil.copyfile(trainer.log, folder / trainer.log.name)
        events = trainer.log.parent / "tensorboard"
        if events.is_dir():
            shutil.copytree(events, folder / events.name)
        ledger.write(folder / "ledger.jsonl")
        text = json.dumps(info, indent=1) + "\n"
        (folder / "info.json").write_text(text, encoding="utf-8")


def num_kept(options: Mapping[str, Any]) -> int:
    """How many ends of epochs must be kept.

    Args:
        options: section `training`.
    """
    kept = options["keep_checkpoints"]
    return max(kept, options["average"]) if options["final"] == "average" else kept


def identity_of(
    options: Mapping[str, Any],
    description: NetworkDescription,
    frames_dir: str | Path,
    labels: Mapping[str, Targets],
    parent: str | Path | None,
) -> dict[str, Any]:
    """What a training depends on; checkpoints of another one are not its own.

    Device, back end and ranks may change between two attempts: they change the result
    by rounding alone. Labels are told by their counts.

    Args:
        options: a network system's, with `seed`.
        description: the network.
        frames_dir: features of the training split.
        labels: of the splits, by the target's name.
        parent: model folder to start from, or None.
    """
    chosen = {
        section: {k: v for k, v in options[section].items() if k not in free}
        for section, free in _FREE.items()
    }
    weights = None if parent is None else Path(parent, "weights.safetensors")
    return {
        **chosen,
        "seed": options["seed"],
        "network": dict(description.config),
        "frames": dict(open_features(frames_dir, options["data"]).meta),
        "labels": {
            split: digest_of({n: s.counts().tolist() for n, s in targets.items()})
            for split, targets in labels.items()
        },
        "parent": weights and hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
