"""A training as a job, whatever its criterion: from options and files to a model.

A kind of training is a `Task`, which makes network, criterion and data of its `Job`;
the rest is the same for all: checkpoints, ranks, the trainer, the model folder. That
holds the model (`latflow.nnet.model_dir`), and beside it

* `final.mdl`, `tree`: of the system that made the alignments (transitions, classes);
* `log.jsonl`: the course of the training (`latflow.training.progress`);
* `info.json`: the epochs and figures it ended with;
* `ledger.jsonl`: utterances that were not trained on;
* `tensorboard/`: the course again, for TensorBoard.

Checkpoints are in another folder, below the digest of what the training depends on, and
are removed when the model is written.

Public: `Job`, `Task`, `run_training`, `identity_of`, `digest_of_file`, `read_network`,
`adopt`, `scale_card`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from latflow.align.transcript_graphs import TranscriptGraphs
from latflow.criteria.options import Scales
from latflow.errors import UserError
from latflow.features.source import Frames
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import choose_device, load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.nnet.pretraining import Pretraining, carry_over
from latflow.options import Options
from latflow.provenance import git_state, versions
from latflow.training.batches import BatchSource, open_batches
from latflow.training.checkpoint import CheckpointStore, digest_of
from latflow.training.continuing import continue_last, keep_finished
from latflow.training.criterion import Criterion
from latflow.training.distributed import Backend, resolve_backend
from latflow.training.ensemble import train_ensemble
from latflow.training.frame_targets import FrameTargets
from latflow.training.labels import LabelStore
from latflow.training.launch import run_ranks, stop_requests, threads_of_rank
from latflow.training.memory import enough_memory
from latflow.training.optimizer_options import CustomSchedule
from latflow.training.options import RunOptions, TrainingOptions
from latflow.training.outliers import reason_of
from latflow.training.readers import open_features
from latflow.training.trainer import Result, Trainer

log = logging.getLogger(__name__)


class Job(Options):
    """Files and options of a training, as ranks are told them (in JSON)."""

    options: RunOptions
    out_dir: Path
    """The model folder, replaced as a whole."""
    checkpoints: Path
    """Folder for the checkpoints of this training and others."""
    frames_dir: Path
    """Features of the training split, stored or on the fly."""
    dev_frames_dir: Path
    """Features of the dev split."""
    source_dir: Path
    """Folder whose `final.mdl` and `tree` go with the model."""
    parent_dir: Path | None = None
    """Model folder whose parameters the training starts from."""
    max_skipped_fraction: float = 1.0
    """Share of utterances that may have no usable labels."""
    threads: int = 1
    """Threads of a rank."""
    identity: dict[str, Any] = Field(default_factory=dict)
    """Everything that the training depends on; see `identity_of`."""
    continued: dict[str, Any] | None = None
    """What it goes on from, where that is another training; see `continue_last`."""

    @property
    def folder(self) -> Path:
        """The folder of this training's checkpoints."""
        return self.checkpoints / digest_of(self.identity)

    @property
    def whole_identity(self) -> dict[str, Any]:
        """What tells its checkpoints: what it depends on, and what it goes on from."""
        if self.continued is None:
            return self.identity
        return {**self.identity, "continued": self.continued}

    def batches(
        self,
        labels: Mapping[str, Mapping[str, LabelStore]],
        normalizer: Normalizer,
        subsampling: int,
        ledger: Ledger,
        graphs: Mapping[str, TranscriptGraphs] | None = None,
        frames: Mapping[str, Mapping[str, FrameTargets]] | None = None,
    ) -> tuple[BatchSource, BatchSource]:
        """Open the batches of training and of dev.

        Args:
            labels: of the splits `train` and `dev`, by the target's name.
            normalizer: of the features.
            subsampling: of the network.
            ledger: gets the utterances that cannot be used.
            graphs: of the transcripts of the splits, where an output learns by CTC.
            frames: features as targets, of the splits, by the target's name.
        """
        folders = {"train": self.frames_dir, "dev": self.dev_frames_dir}
        train, dev = (
            open_batches(
                folder,
                labels.get(split, {}),
                self.options.data,
                normalizer=normalizer,
                graphs=(graphs or {}).get(split),
                frames=(frames or {}).get(split),
                subsampling=subsampling,
                seed=self.options.seed,
                ledger=ledger,
                is_training=split == "train",
            )
            for split, folder in folders.items()
        )
        return train, dev


class Task(ABC):
    """A kind of training, on one rank; a subclass takes (job, device).

    Attributes:
        JOB: the type of its jobs.
        FAILURE: what the ledger says of utterances that the criterion had no path for.
        ledger: gets the utterances that are not trained on.
        network: on its device, with its first parameters.
        criterion: what is minimized.
        dev_criterion: what dev is evaluated with.
        batches: of training and of dev.
        meta: for meta.json.
        scales: what weighs the parts of the criterion; see `Scales`.
        pretraining: layer-wise pretraining, or None.
    """

    JOB: type[Job]
    FAILURE: ClassVar[str] = "had no path"
    ledger: Ledger
    network: Network
    criterion: Criterion
    dev_criterion: Criterion
    batches: tuple[BatchSource, BatchSource]
    meta: Mapping[str, Any]
    scales: Scales
    pretraining: Pretraining | None = None

    @abstractmethod
    def __init__(self, job: Any, device: torch.device) -> None:
        """Open the files of a job."""

    @abstractmethod
    def priors(self, network: Network, backend: Backend) -> np.ndarray | None:
        """Return the priors of the first output's classes, [K]; all ranks call it.

        None where the outputs are log-likelihoods.
        """

    def gather(self, backend: Backend) -> None:
        """Bring the ranks' records together after training; all ranks call it.

        Here: the utterances that the criterion had no path for, on any rank.
        """
        ranks = backend.gather(sorted(self.criterion.failures()))
        for name in sorted({name for names in ranks for name in names}):
            self.ledger.record(name, self.FAILURE)

    def write(self, folder: Path) -> None:  # noqa: B027 - optional
        """Add files to the model folder; rank 0 alone calls it."""


def run_training(
    task: type[Task], job: Job, *, threads: int, ranks: int, hosts: str | None
) -> None:
    """Train a network, from the newest checkpoint of the same training if there is one.

    Args:
        task: the kind of training.
        job: its files and options.
        threads: of all ranks on this machine together.
        ranks: processes that share each batch.
        hosts: machines of the ranks, as for `horovodrun -H`; `srun` for those of the
            SLURM job that we are in; None for this one.

    Raises:
        UserError: inputs that do not fit each other; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    job = job.replace(threads=threads_of_rank(threads, ranks, hosts))
    name = f"{task.__module__}:{task.__qualname__}"
    device = str(choose_device(job.options.device))

    def train(job: Job) -> None:
        run_ranks(
            f"{__name__}:train_rank",
            {"task": name, "job": job.values(), "device": device},
            job.folder / "job.json",
            ranks=ranks,
            backend=resolve_backend(job.options.backend, ranks),
            threads=threads,
            hosts=hosts,
            elastic=job.options.training.elastic,
        )

    options = job.options.training
    if options.continue_from is not None:
        continued = continue_last(job.checkpoints, job.folder, job.identity)
        job = job.replace(continued=continued)
    if options.ensemble == 1:
        train(job)
        if options.keep_finished:
            keep_finished(job.folder)
        else:
            shutil.rmtree(job.folder)
        return
    is_alone = device == "cpu" and ranks == 1 and hosts is None
    train_ensemble(job, name, device, train, threads=threads, are_parallel=is_alone)


def train_rank(
    backend: Backend, *, task: str, job: Mapping[str, Any], device: str
) -> None:
    """Train as one rank of several, or alone; rank 0 writes the model.

    Args:
        backend: the other ranks.
        task: `module:name` of the kind of training.
        job: values of its job.
        device: `cpu` or `cuda`.
    """
    with enough_memory(
        "the network, its gradient and the optimizer's numbers do not fit",
        "take a smaller network, an optimizer that keeps less (sgd), or a larger "
        "machine; latflow plan tells what a network takes",
    ):
        _train_rank(backend, resolve_name(task), job, device)


def _train_rank(
    backend: Backend, kind: type[Task], job: Mapping[str, Any], device: str
) -> None:
    """Do what `train_rank` does, with the kind of training."""
    described = kind.JOB.model_validate(job)
    options = described.options
    made = kind(described, place_rank(device, backend))
    train, dev = made.batches
    if backend.is_main:
        count = len(train.reader.utt_ids) + len(dev.reader.utt_ids)
        made.ledger.check(count, max_skipped_fraction=described.max_skipped_fraction)
        log.info("scales of %s: %s", made.criterion.name, scale_card(made.scales))
    store = CheckpointStore(
        described.folder, described.whole_identity, keep=num_kept(options.training)
    )
    with (
        closing(made.criterion),
        closing(made.dev_criterion),
        stop_requests() as should_stop,
    ):
        trainer = Trainer(
            made.network,
            made.criterion,
            train,
            dev,
            options.training,
            store,
            seed=options.seed,
            backend=backend,
            dev_criterion=made.dev_criterion,
            should_stop=should_stop,
            pretraining=made.pretraining,
            scales=made.scales,
        )
        result = trainer.run()
    note_outliers(result, options.training, made.ledger)
    priors = made.priors(trainer.network, backend)
    made.gather(backend)
    if backend.is_main:
        _write_model(made, described, trainer, result, priors)
    backend.barrier()


def scale_card(scales: Scales) -> str:
    """Return the scales of a training in one line."""
    told = (v if isinstance(v, str) else f"{v:g}" for v in scales.values())
    return ", ".join(f"{n} {v}" for n, v in zip(scales, told, strict=True))


def note_outliers(result: Result, options: TrainingOptions, ledger: Ledger) -> None:
    """Note the utterances of steps that were skipped or clipped."""
    if options.outliers is not None:
        for found in result.outliers:
            reason = reason_of(found, options.outliers.action)
            for utterance in found["utterances"]:
                ledger.record(utterance, reason, action="noted")


def place_rank(device: str, backend: Backend) -> torch.device:
    """Return the device of this rank: of several GPUs, the one with its number.

    Args:
        device: `cpu` or `cuda`.
        backend: tells the number.
    """
    if device == "cpu":
        return torch.device("cpu")
    where = torch.device("cuda", backend.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(where)
    return where


def num_kept(options: TrainingOptions) -> int:
    """Return how many ends of epochs must be kept."""
    kept = options.keep_checkpoints
    return max(kept, options.average) if options.final == "average" else kept


def _write_model(
    task: Task, job: Job, trainer: Trainer, result: Result, priors: np.ndarray | None
) -> None:
    """Write a model folder with the record of its training."""
    network = trainer.network
    info = {**asdict(result), "num_parameters": network.num_parameters}
    meta = {
        **task.meta,
        "scales": dict(task.scales),
        "options": job.options.values(),
        "parent": None if job.parent_dir is None else str(job.parent_dir),
        "continued": job.continued,
        **info,
        "versions": versions(),
        "commit": git_state(),
    }
    with atomic_directory(job.out_dir) as folder:
        save_model(folder, network, network.description, priors, meta)
        for name in ("final.mdl", "tree"):
            shutil.copyfile(job.source_dir / name, folder / name)
        shutil.copyfile(trainer.log_file, folder / trainer.log_file.name)
        events = trainer.log_file.parent / "tensorboard"
        if events.is_dir():
            shutil.copytree(events, folder / events.name)
        task.ledger.write(folder / "ledger.jsonl")
        text = json.dumps(info, indent=1) + "\n"
        (folder / "info.json").write_text(text, encoding="utf-8")
        task.write(folder)


def digest_of_file(path: Path) -> str:
    """Return the digest of a file's contents.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="make it first")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def identity_of(
    options: RunOptions,
    description: NetworkDescription,
    frames_dir: str | Path,
    labels: Mapping[str, Mapping[str, LabelStore]],
    parent_dir: str | Path | None,
) -> dict[str, Any]:
    """Return what a training depends on; checkpoints of another one are not its own.

    Ranks and options that are marked `Free` may change between two attempts: they
    change the result by rounding alone. Labels are told by their counts.

    Args:
        options: of the training.
        description: the network.
        frames_dir: features of the training split.
        labels: of the splits, by the target's name.
        parent_dir: model folder to start from, or None.
    """
    bound, _ = options.split()
    chosen = {name: bound[name] for name in ("training", "data")}
    if options.training.continue_from is None:
        del chosen["training"]["continue_from"]
    weights = None if parent_dir is None else Path(parent_dir, "weights.safetensors")
    schedule = options.training.schedule
    if isinstance(schedule, CustomSchedule):
        chosen["schedule"] = {str(p): digest_of_file(p) for p in schedule.files}
    return {
        **chosen,
        "seed": options.seed,
        "network": dict(description.config),
        "frames": dict(open_features(frames_dir, options.data).meta),
        "labels": {
            split: digest_of({n: s.counts().tolist() for n, s in targets.items()})
            for split, targets in labels.items()
        },
        "parent": weights and hashlib.sha256(weights.read_bytes()).hexdigest(),
    }


def read_network(file: Path, features: Frames) -> NetworkDescription:
    """Return the network that a file describes, with the features' parts in place.

    Args:
        file: the description.
        features: that the network reads.

    Raises:
        UserError: a wrong description, or one of parts that the features have not.
    """
    parts = features.meta.get("parts", ())
    return NetworkDescription.load(file).with_parts(dict(parts))


def adopt(network: Network, parent: Path) -> None:
    """Take over the parameters of another network, by name, where shapes agree.

    The other network may have layers more or fewer, or other outputs. Statistics of
    normalization are taken over too.

    Args:
        network: what it has in common with the parent is overwritten.
        parent: model folder.

    Raises:
        UserError: nothing is in common.
    """
    before = load_model(parent).network
    new = carry_over(before, network)
    own, known = network.state_dict(), before.state_dict()
    if len(new) == len(own):
        raise UserError(
            "shares no layer's name and size with the new network",
            file=parent,
            remedy="name a parent with the same layers",
        )
    log.info(
        "%d of %d parameters are those of %s", len(own) - len(new), len(own), parent
    )
    for name in new:
        why = "is of another size in" if name in known else "is not in"
        log.warning("%s %s the parent %s, and starts anew", name, why, parent)
    for name in sorted(known.keys() - own.keys()):
        log.warning("%s of the parent %s is left out", name, parent)
