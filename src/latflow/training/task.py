"""A training, whatever its criterion: from a job's options and files to a model.

A kind of training is a `Task`, which makes network, criterion and data of its `Job`
(`latflow.training.job`); the rest is the same for all: checkpoints, ranks, the trainer,
the model folder. That holds the model (`latflow.nnet.model_dir`), and beside it

* `final.mdl`, `tree`: of the system that made the alignments (transitions, classes);
* `log.jsonl`: the course of the training (`latflow.training.progress`);
* `info.json`: the epochs and figures it ended with;
* `ledger.jsonl`: utterances that were not trained on;
* `tensorboard/`: the course again, for TensorBoard.

Checkpoints are in another folder, below the digest of what the training depends on, and
are removed when the model is written.
"""

from __future__ import annotations

import json
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import torch

from latflow.criteria.consistency import Consistent, regularized_outputs
from latflow.criteria.options import Scales
from latflow.criteria.protocol import Criterion
from latflow.errors import UserError
from latflow.features.source import Frames
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import choose_device, load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.pretraining import Pretraining, carry_over
from latflow.options import adapter
from latflow.provenance import git_state, versions
from latflow.training.batches import BatchSource
from latflow.training.checkpoint import CheckpointStore
from latflow.training.continuing import continue_last, keep_finished
from latflow.training.distributed import Backend, resolve_backend
from latflow.training.ensemble import train_ensemble
from latflow.training.job import Job, job_values
from latflow.training.launch import run_ranks, stop_requests
from latflow.training.memory import enough_memory
from latflow.training.options import TrainingOptions
from latflow.training.outliers import reason_of
from latflow.training.trainer import Result, Trainer

log = logging.getLogger(__name__)


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


def run_training(task: type[Task], job: Job) -> None:
    """Train a network, from the newest checkpoint of the same training if there is one.

    Args:
        task: the kind of training.
        job: its files and options.

    Raises:
        UserError: inputs that do not fit each other; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    job = replace(job, identity=job.identify())
    name = f"{task.__module__}:{task.__qualname__}"
    device = str(choose_device(job.options.device))

    def train(job: Job) -> None:
        run_ranks(
            f"{__name__}:train_rank",
            {"task": name, "job": job_values(job), "device": device},
            job.folder / "job.json",
            ranks=job.ranks,
            backend=resolve_backend(job.options.backend, job.ranks),
            threads=job.threads,
            hosts=job.hosts,
            elastic=job.options.training.elastic,
        )

    options = job.options.training
    if options.continue_from is not None:
        continued = continue_last(job.checkpoints, job.folder, job.identity)
        job = replace(job, continued=continued)
    if options.ensemble == 1:
        train(job)
        if options.keep_finished:
            keep_finished(job.folder)
        else:
            shutil.rmtree(job.folder)
        return
    is_alone = device == "cpu" and job.ranks == 1 and job.hosts is None
    train_ensemble(job, name, device, train, are_parallel=is_alone)


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
        "machine; latflow plan shows what a network takes",
    ):
        _train_rank(backend, resolve_name(task), job, device)


def _train_rank(
    backend: Backend, kind: type[Task], job: Mapping[str, Any], device: str
) -> None:
    """Do what `train_rank` does, with the kind of training."""
    described = adapter(kind.JOB).validate_python(job)
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
            _criterion_of(made, options.training),
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


def _criterion_of(task: Task, options: TrainingOptions) -> Criterion:
    """Return the criterion of training, with that of two views where it is wanted.

    Raises:
        UserError: no output gives posteriors of frames.
    """
    if not options.consistency:
        return task.criterion
    outputs = regularized_outputs(task.network.description.outputs)
    if not outputs:
        raise UserError(
            "training.consistency is of outputs of CTC or cross-entropy, and the "
            "network has none",
            file=task.network.description.file,
            remedy="set it to 0",
        )
    return Consistent(task.criterion, outputs, options.consistency)


def scale_card(scales: Scales) -> str:
    """Return the scales of a training in one line."""
    values = (v if isinstance(v, str) else f"{v:g}" for v in scales.values())
    return ", ".join(f"{n} {v}" for n, v in zip(scales, values, strict=True))


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
        backend: determines the number.
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
            shutil.copyfile(job.tree_dir / name, folder / name)
        shutil.copyfile(trainer.log_file, folder / trainer.log_file.name)
        events = trainer.log_file.parent / "tensorboard"
        if events.is_dir():
            shutil.copytree(events, folder / events.name)
        task.ledger.write(folder / "ledger.jsonl")
        text = json.dumps(info, indent=1) + "\n"
        (folder / "info.json").write_text(text, encoding="utf-8")
        task.write(folder)


def read_network(file: Path, features: Frames) -> NetworkDescription:
    """Return the network that a file describes, with the features' parts in place.

    Args:
        file: the description.
        features: that the network reads.

    Raises:
        UserError: a wrong description, or one of parts that the features lack.
    """
    parts = features.meta.get("parts", ())
    return NetworkDescription.load(file).with_parts(dict(parts))


def load_matching(network: Network, parent: Path) -> None:
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
        log.warning("%s %s the parent %s, and starts again", name, why, parent)
    for name in sorted(known.keys() - own.keys()):
        log.warning("%s of the parent %s is left out", name, parent)
