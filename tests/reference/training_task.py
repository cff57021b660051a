"""A small task that networks learn in seconds, and trainers of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.options import read_options
from latflow.training.batches import Targets, open_batches
from latflow.training.checkpoint import CheckpointStore
from latflow.training.data_options import DataOptions
from latflow.training.distributed import Backend
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.launch import stop_requests
from latflow.training.losses import CrossEntropy, losses_of
from latflow.training.options import TrainingOptions
from latflow.training.trainer import Trainer

DIM, CLASSES = 6, 5
LAYERS: dict[str, Any] = {
    "hidden": {"class": "linear", "from": "data", "size": 12, "activation": "tanh"},
    "rec": {"class": "rec", "unit": "lstm", "direction": "bidirectional", "size": 7},
    "output": {"class": "output"},
}


def training_options(**changes: Any) -> TrainingOptions:
    """Section `training` with its defaults and some changes."""
    quiet = {"tensorboard": False, "log_interval": 2}
    return read_options(TrainingOptions, {**quiet, **changes}, "training")


def data_options(**changes: Any) -> DataOptions:
    """Section `data` with its defaults and some changes."""
    small = {
        "sequences": {"type": "chunks", "size": 10},
        "max_sequences": 6,
        "normalization": "none",
    }
    return read_options(DataOptions, {**small, **changes}, "data")


def write_task(folder: Path, *, utterances: int = 12, seed: int = 1) -> None:
    """Write `frames` and `labels`: each class has a mean, frames have noise."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(size=(CLASSES, DIM))
    with (
        FrameWriter(folder / "frames", dim=DIM) as frames,
        LabelWriter(folder / "labels", CLASSES) as labels,
    ):
        for number in range(utterances):
            length = int(rng.integers(5, 31))
            of_frame = np.repeat(rng.integers(0, CLASSES, length), 4)[:length]
            noise = rng.normal(size=(length, DIM))
            name = f"u{number:03d}"
            frames.append(name, "s", "", (means[of_frame] + noise).astype(np.float32))
            labels.append(name, of_frame.astype(np.int32))


def description(layers: dict[str, Any] | None = None) -> NetworkDescription:
    """A small network."""
    return NetworkDescription.from_config({"layers": layers or LAYERS})


def make_trainer(
    task: Path,
    checkpoints: Path,
    *,
    data: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    layers: dict[str, Any] | None = None,
    seed: int = 3,
    backend: Backend | None = None,
    **others: Any,
) -> Trainer:
    """A trainer of the task, with dev = train."""
    options = training_options(**(training or {}))
    network = Network(description(layers), DIM, {"pdf": CLASSES}, seed=seed)
    store = LabelStore.load(task / "labels")
    train, dev = (
        open_batches(
            task / "frames",
            Targets({"pdf": store}),
            data_options(**(data or {})),
            normalizer=Normalizer(),
            subsampling=network.subsampling,
            seed=seed,
            is_training=is_training,
        )
        for is_training in (True, False)
    )
    return Trainer(
        network,
        losses_of(network, label_smoothing=options.label_smoothing),
        train,
        dev,
        options,
        CheckpointStore(checkpoints, {"seed": seed}, keep=options.keep_checkpoints),
        seed=seed,
        backend=backend or Backend(),
        **others,
    )


def train_as_rank(
    backend: Backend,
    *,
    task: str,
    folder: str,
    settings: dict[str, Any],
    device: str,
    fault: dict[str, Any] | None = None,
) -> None:
    """Job of a rank: train, and write parameters as `<folder>/<name>/final.pt`.

    Args:
        backend: the other ranks.
        task: folder of the data.
        folder: of checkpoints and parameters.
        settings: by name, further arguments of `make_trainer`.
        device: unused but by the worker.
        fault: the `rank` that fails, in which `step`, with which `error`; it leaves
            the file `mark`.
    """
    for name, chosen in settings.items():
        out = Path(folder) / name
        with stop_requests() as should_stop:
            trainer = make_trainer(
                Path(task), out, backend=backend, should_stop=should_stop, **chosen
            )
            if fault is not None and fault["rank"] == backend.rank:
                trainer.criterion = FailingCriterion(trainer.network, fault)
                trainer.set_up()
            trainer.run()
        if backend.is_main:
            torch.save(trainer.network.state_dict(), out / "final.pt")
    backend.barrier()


class FailingCriterion(CrossEntropy):
    """Cross-entropy that ends its process after some parts.

    Args:
        network: tells the outputs.
        fault: `step`: how many parts go well; `error`: `exception` or `kill`;
            `mark`: a file that is made then.
    """

    def __init__(self, network: Network, fault: dict[str, Any]) -> None:
        super().__init__({n: o.loss for n, o in network.outputs.items()})
        self._fault, self._count = fault, 0

    def begin(self, outputs: Any, batch: Any) -> Any:
        """Compute the loss, or fail."""
        self._count += 1
        if self._count > self._fault["step"]:
            Path(self._fault["mark"]).touch()
            if self._fault["error"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise UserError("the disk is gone", utterance=batch.utterances[0])
        return super().begin(outputs, batch)
