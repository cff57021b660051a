"""What a training is made of, and what identifies its checkpoints."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.ledger import Ledger
from latflow.nnet.description import NetworkDescription
from latflow.nnet.encoders import identity_of
from latflow.nnet.normalization import Normalizer
from latflow.options import adapter
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.checkpoint import digest_of
from latflow.training.labels import LabelStore
from latflow.training.launch import threads_of_rank
from latflow.training.optimizer_options import CustomSchedule
from latflow.training.options import RunOptions
from latflow.training.readers import open_features


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """Files and options of a training, which its rule gives by name.

    Ranks read it from JSON; `run_training` has put into the last two fields by then
    what the job itself reports.
    """

    options: RunOptions
    """How."""
    out_dir: Path
    """The model folder, replaced as a whole."""
    checkpoints: Path
    """Folder for the checkpoints of this training and others."""
    frames_dir: Path
    """Features of the training split, stored or on the fly."""
    dev_frames_dir: Path
    """Features of the dev split."""
    parent_dir: Path | None
    """Model folder whose parameters the training starts from; None for random ones."""
    max_skipped_fraction: float = 1.0
    """Share of utterances that may have nothing to learn from."""
    threads: int = 1
    """Of all ranks on this machine together."""
    ranks: int = 1
    """Processes that share each batch."""
    hosts: str | None = None
    """Machines of the ranks, as for `horovodrun -H`; `srun` for those of the SLURM job
    that we are in; None for this one."""
    identity: dict[str, Any] = field(default_factory=dict)
    """Everything that the training depends on; see `identify`."""
    continued: dict[str, Any] | None = None
    """What it continues from, where that is another training; see `continue_last`."""

    @property
    @abstractmethod
    def tree_dir(self) -> Path:
        """The folder whose `final.mdl` and `tree` go with the model."""

    @property
    def rank_threads(self) -> int:
        """Threads of a rank."""
        return threads_of_rank(self.threads, self.ranks, self.hosts)

    @property
    def folder(self) -> Path:
        """The folder of this training's checkpoints."""
        return self.checkpoints / digest_of(self.identity)

    @property
    def whole_identity(self) -> dict[str, Any]:
        """Key of its checkpoints: what it depends on, and what it continues."""
        if self.continued is None:
            return self.identity
        return {**self.identity, "continued": self.continued}

    @abstractmethod
    def identify(self) -> dict[str, Any]:
        """Return what the training depends on; other checkpoints are not its own.

        Ranks and options that are marked `Free` may change between two attempts: they
        change the result by rounding alone. Labels count by their numbers.
        """

    def identity_with(
        self,
        description: NetworkDescription,
        labels: Mapping[str, Mapping[str, LabelStore]],
    ) -> dict[str, Any]:
        """Return what every training depends on.

        Args:
            description: the network.
            labels: of the splits, by the target's name.
        """
        options, parent = self.options, self.parent_dir
        bound, _ = options.split()
        chosen = {name: bound[name] for name in ("training", "data")}
        if options.training.continue_from is None:
            del chosen["training"]["continue_from"]
        schedule = options.training.schedule
        if isinstance(schedule, CustomSchedule):
            chosen["schedule"] = {str(p): digest_of_file(p) for p in schedule.files}
        if folders := description.encoder_folders():
            chosen["encoders"] = {x: identity_of(x) for x in folders}
        return {
            **chosen,
            "seed": options.seed,
            "network": dict(description.config),
            "frames": dict(open_features(self.frames_dir, options.data).meta),
            "labels": {
                split: digest_of({n: s.counts().tolist() for n, s in targets.items()})
                for split, targets in labels.items()
            },
            "parent": parent and digest_of_file(parent / "weights.safetensors"),
        }

    def batches(
        self,
        targets: Mapping[str, Targets],
        normalizer: Normalizer,
        subsampling: int,
        ledger: Ledger,
    ) -> tuple[BatchSource, BatchSource]:
        """Open the batches of training and of dev.

        Args:
            targets: what is learnt of the splits `train` and `dev`.
            normalizer: of the features.
            subsampling: of the network.
            ledger: gets the utterances that cannot be used.
        """
        folders = {"train": self.frames_dir, "dev": self.dev_frames_dir}
        train, dev = (
            open_batches(
                folder,
                targets.get(split, Targets()),
                self.options.data,
                normalizer=normalizer,
                subsampling=subsampling,
                seed=self.options.seed,
                ledger=ledger,
                is_training=split == "train",
            )
            for split, folder in folders.items()
        )
        return train, dev


def job_values(job: Job) -> dict[str, Any]:
    """Return a job as values that JSON knows, which `train_rank` takes."""
    return adapter(type(job)).dump_python(job, mode="json", by_alias=True)


def digest_of_file(path: Path) -> str:
    """Return the digest of a file's contents.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="make it first")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
