"""Stage `train_network`: from frames and alignments to a model folder.

The folder holds the model (`latflow.nnet.model_dir`), and beside it

* `final.mdl`, `tree`: of the system that made the alignments (transitions, classes);
* `log.jsonl`: the course of the training (`latflow.training.progress`);
* `info.json`: what it ended with;
* `ledger.jsonl`: utterances that were not trained on;
* `tensorboard/`: the course again, for TensorBoard.

Checkpoints are in another folder, below the digest of what the training depends on, and
are removed when the model is written.

Public: `train_network`, `train_rank`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latflow.criteria.ce import CrossEntropy
from latflow.lang.composition import load_model as load_transitions
from latflow.ledger import Ledger
from latflow.nnet.description import NetworkDescription
from latflow.training.checkpoint import CheckpointStore, digest_of
from latflow.training.device import choose_device
from latflow.training.distributed import Backend, resolve_backend
from latflow.training.interruption import stop_requests
from latflow.training.launch import run_ranks
from latflow.training.session import (
    Data,
    growth_of,
    identity_of,
    num_kept,
    place_rank,
    start_network,
    write_model,
)
from latflow.training.targets import write_targets
from latflow.training.trainer import Trainer


def train_network(  # noqa: PLR0913 - a stage: its inputs and how it runs
    frames_dir: str | Path,
    alignments: str | Path,
    model_dir: str | Path,
    dev_frames_dir: str | Path,
    dev_alignments: str | Path,
    network: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    checkpoints_dir: str | Path,
    threads: int = 1,
    ranks: int = 1,
    hosts: str | None = None,
    parent: str | Path | None = None,
    max_skipped_fraction: float = 1.0,
) -> None:
    """Train a network on the labels of alignments (cross-entropy).

    Outputs may be trained to tell pdfs or phones; see `latflow.training.targets`.

    Goes on from the newest checkpoint of the same training, if there is one.

    Args:
        frames_dir: the `FrameStore` of the training split.
        alignments: `ali.ark` of the training split, transition-ids.
        model_dir: folder of the system that made the alignments.
        dev_frames_dir: the `FrameStore` of the dev split.
        dev_alignments: `ali.ark` of the dev split.
        network: description of the network; see docs/networks.md.
        out_dir: the model folder, replaced as a whole.
        options: a network system of `workflow/schemas/nnet.yaml` (`data`, `training`),
            with `device`, `backend` and `seed`.
        checkpoints_dir: where checkpoints are kept until the model is written.
        threads: of all ranks on this machine together.
        ranks: processes that share each batch.
        hosts: machines of the ranks, as for `horovodrun -H`; `srun` for those of the
            SLURM job; None for this one.
        parent: model folder whose parameters the training starts from; None for
            random ones.
        max_skipped_fraction: share of utterances that may have no usable labels.

    Raises:
        UserError: inputs that do not fit each other; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    model_dir, work = Path(model_dir), Path(checkpoints_dir)
    _, transitions = load_transitions(model_dir)
    description = NetworkDescription.load(network)
    names = [loss.target for loss in description.outputs.values()]
    # A training that was killed, or had other outputs, may have left others.
    shutil.rmtree(work / "labels", ignore_errors=True)
    labels = {
        split: write_targets(source, transitions, work / "labels" / split, names)
        for split, source in (("train", alignments), ("dev", dev_alignments))
    }
    backend = resolve_backend(options["backend"], ranks)
    identity = identity_of(options, description, frames_dir, labels, parent)
    folder = work / digest_of(identity)
    arguments = {
        "frames_dir": str(frames_dir),
        "dev_frames_dir": str(dev_frames_dir),
        "labels_dir": str(work / "labels"),
        "model_dir": str(model_dir),
        "network": str(network),
        "parent": None if parent is None else str(parent),
        "out_dir": str(out_dir),
        "folder": str(folder),
        "options": dict(options),
        "identity": identity,
        "device": str(choose_device(options["device"])),
        "max_skipped_fraction": max_skipped_fraction,
    }
    run_ranks(
        f"{__name__}:train_rank",
        arguments,
        folder / "job.json",
        ranks=ranks,
        backend=backend,
        threads=threads,
        hosts=hosts,
        elastic=options["training"]["elastic"],
    )
    shutil.rmtree(folder)
    shutil.rmtree(work / "labels")


def train_rank(  # noqa: PLR0913 - the values of a job
    backend: Backend,
    *,
    frames_dir: str,
    dev_frames_dir: str,
    labels_dir: str,
    model_dir: str,
    network: str,
    parent: str | None,
    out_dir: str,
    folder: str,
    options: Mapping[str, Any],
    identity: Mapping[str, Any],
    device: str,
    max_skipped_fraction: float,
) -> None:
    """Train as one rank of several, or alone; rank 0 writes the model.

    Args:
        backend: the other ranks.
        frames_dir: frames of the training split.
        dev_frames_dir: frames of the dev split.
        labels_dir: holds folders `train` and `dev` of `write_targets`.
        model_dir: folder of the system that made the alignments.
        network: description of the network.
        parent: model folder to start from, or None.
        out_dir: the model folder.
        folder: of the checkpoints.
        options: see `train_network`.
        identity: what the training depends on.
        device: `cpu` or `cuda`.
        max_skipped_fraction: see `train_network`.
    """
    where = place_rank(device, backend)
    training, ledger = options["training"], Ledger("train_network")
    data = Data.open(
        {"train": frames_dir, "dev": dev_frames_dir}, labels_dir, options, ledger
    )
    description = NetworkDescription.load(network)
    model = start_network(description, data, options["seed"], parent).to(where)
    train, dev = data.batches(model.subsampling)
    if backend.is_main:
        count = len(train.reader.utt_ids) + len(dev.reader.utt_ids)
        ledger.check(count, max_skipped_fraction=max_skipped_fraction)
    smoothing = training["label_smoothing"]
    with stop_requests() as should_stop:
        trainer = Trainer(
            model,
            CrossEntropy.of(model, label_smoothing=smoothing),
            train,
            dev,
            training,
            CheckpointStore(folder, identity, keep=num_kept(training)),
            seed=options["seed"],
            backend=backend,
            dev_criterion=CrossEntropy.of(model),
            should_stop=should_stop,
            growth=growth_of(model, options),
        )
        result = trainer.run()
    model = trainer.network
    priors = data.priors(model, training["priors"], train, backend)
    if backend.is_main:
        meta = {
            "criterion": "ce",
            "options": dict(options),
            "parent": parent,
            "normalisation": data.normaliser.to_meta(),
        }
        write_model(
            out_dir,
            model,
            priors,
            meta,
            result=result,
            trainer=trainer,
            ledger=ledger,
            source_dir=model_dir,
        )
    backend.barrier()
