"""Checkpoints: all that a training needs to continue as if it had not been stopped.

A file `e0003-b000120.pt` lets a training continue in epoch 3 after its first 120
batches. It is written beside its name, forced to the disk, and renamed: a killed job
leaves the checkpoint before, or this one whole. Random numbers follow from (seed, step,
rank), so that the position holds their state too.

The folder belongs to one training: its files carry a digest of what the training
depends on, and those of another training are refused, with what differs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from latflow.errors import UserError
from latflow.files import is_full_disk

FORMAT = "latflow-checkpoint-3"
_UNFINISHED = ".tmp."  # before the name of a file that is being written
_NAME = re.compile(r"e(\d+)-b(\d+)\.pt")

log = logging.getLogger(__name__)
State = dict[str, Any]
FRAMES = "frames"
Means = dict[str, float]


@dataclass(frozen=True, order=True)
class Position:
    """The epoch and batch at which a training continues.

    Attributes:
        epoch: counted from 1.
        batch: batches of the epoch that are done.
    """

    epoch: int = 1
    batch: int = 0

    @property
    def file_name(self) -> str:
        """Name of the checkpoint; names sort as positions do."""
        return f"e{self.epoch:04d}-b{self.batch:08d}.pt"


@dataclass
class TrainingState:
    """All that changes in a training beside network and optimizer.

    Attributes:
        position: in the data.
        step: of the optimizer, the last one begun, from 1.
        history: means per frame on dev at the end of each finished epoch.
        last_train: means per frame in training, of the last finished epoch.
        epoch_sums: sums of the current epoch.
        window_sums: sums since the last line of the log.
        log_offset: bytes of the log.
        pretraining_step: step of layer-wise pretraining that the network is in.
        outliers: steps that were skipped or clipped.
    """

    position: Position = field(default_factory=Position)
    step: int = 0
    history: list[Means] = field(default_factory=list)
    last_train: Means = field(default_factory=dict)
    epoch_sums: Means = field(default_factory=dict)
    window_sums: Means = field(default_factory=dict)
    log_offset: int = 0
    pretraining_step: int = 0
    outliers: list[State] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Return all but the position, which is the name of a checkpoint."""
        names = (f.name for f in fields(self) if f.name != "position")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, position: Position, state: Mapping[str, Any]) -> TrainingState:
        """Return the state that a checkpoint holds."""
        return cls(position=position, **state)

    def add(self, sums: Mapping[str, float]) -> None:
        """Add the sums of a step."""
        for total in (self.epoch_sums, self.window_sums):
            for name, value in sums.items():
                total[name] = total.get(name, 0.0) + value

    def next_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.position = Position(self.position.epoch + 1)
        self.epoch_sums, self.window_sums = {}, {}


def means(sums: Mapping[str, float]) -> Means:
    """Return sums per frame; `frames` itself stays the sum."""
    frames = sums.get(FRAMES, 0.0)
    if not frames:
        return {}
    by_frame = {name: value / frames for name, value in sums.items() if name != FRAMES}
    return {FRAMES: frames, **by_frame}


def digest_of(identity: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that follow from what a training depends on.

    Args:
        identity: options and inputs, values that JSON knows.
    """
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


class CheckpointStore:
    """The checkpoints of one training.

    Args:
        folder: where they are; made if absent.
        identity: what the training depends on, values that JSON knows.
        keep: how many ends of epochs are kept.
    """

    def __init__(
        self, folder: str | Path, identity: Mapping[str, Any], *, keep: int = 2
    ) -> None:
        self.folder = Path(folder)
        self.identity = json.loads(json.dumps(identity))
        self.keep = keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def positions(self) -> list[Position]:
        """Return the positions of the checkpoints that are there, ascending."""
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(Position(int(m[1]), int(m[2])) for m in matches if m)

    def save(self, position: Position, state: State, wanted: Iterable[int]) -> Path:
        """Write a checkpoint, then remove those that nobody needs any more.

        Kept are this one, the last `keep` ends of epochs, and the wanted ones. The one
        before goes only when this one is on the disk.

        Args:
            position: where to continue.
            state: tensors and plain values.
            wanted: epochs whose ends must stay, e.g. the best.
        """
        path = self.folder / position.file_name
        whole = {"format": FORMAT, "identity": self.identity, "state": state}
        _write(path, whole)
        ends = [p for p in self.positions() if p.batch == 0]
        self._keep({position, *ends[-self.keep :]}, wanted)
        return path

    def end(self, wanted: Iterable[int]) -> None:
        """Remove all but the newest checkpoint and the wanted ones, at the end.

        Args:
            wanted: epochs whose ends must stay, e.g. the best.
        """
        self._keep({*self.positions()[-1:]}, wanted)

    def _keep(self, kept: set[Position], wanted: Iterable[int]) -> None:
        """Remove other checkpoints than some, and the ends of epochs."""
        ends = {Position(epoch + 1) for epoch in wanted}
        for other in self.positions():
            if other not in kept | ends:
                (self.folder / other.file_name).unlink(missing_ok=True)

    def load(self, position: Position) -> State:
        """Read a checkpoint.

        Raises:
            UserError: it is not readable, or of another training.
        """
        path = self.folder / position.file_name
        whole = read_checkpoint(path)
        if whole["identity"] != self.identity:
            found = differences(whole["identity"], self.identity)
            different = ", ".join(f"{k} ({a} and {b})" for k, (a, b) in found.items())
            raise UserError(
                f"is of another training; different: {different}",
                file=path,
                remedy="give the other training another folder, or remove this one",
            )
        return whole["state"]

    def latest(self) -> tuple[Position, State] | None:
        """Return the newest checkpoint; None without one.

        Files that a killed job was writing are removed.

        Raises:
            UserError: it is of another training, or none of the files is readable.
        """
        for unfinished in self.folder.glob(f"{_UNFINISHED}*"):
            unfinished.unlink(missing_ok=True)
        failure: UserError | None = None
        for position in reversed(self.positions()):
            try:
                return position, self.load(position)
            except UserError as error:
                if "another training" in error.what:
                    raise
                log.warning("%s; trying the one before", error)
                failure = error
        if failure is not None:
            raise failure
        return None


def read_checkpoint(path: Path) -> State:
    """Read a checkpoint of any training.

    Returns:
        Its `identity` and its `state`.

    Raises:
        UserError: it is not readable.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch looks at no checksum
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
        whole = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of broken files it may raise anything
        what = " ".join(str(error).split())
        raise UserError(
            f"not a readable checkpoint ({what})",
            file=path,
            remedy="remove the file; the training continues from the one before",
        ) from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise UserError(
            "not a checkpoint of this version of latflow",
            file=path,
            remedy="remove the folder; the training begins again",
        )
    return whole


def _write(path: Path, whole: State) -> None:
    """Write a file so that after any crash it is whole or absent."""
    temporary = path.with_name(f"{_UNFINISHED}{path.name}")
    try:
        with temporary.open("wb") as stream:
            torch.save(whole, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except (
        OSError,
        RuntimeError,
    ) as error:  # torch reports faults of the disk by the latter
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"may not be written ({_reason(error)})",
            file=path,
            remedy="the unfinished file was removed; free space there, or have the "
            "results folder on another disk: the training continues from the "
            "checkpoint before",
        ) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _reason(error: BaseException) -> str:
    """Return the disk's message, where that is why something failed, in one line."""
    if is_full_disk(error):
        return os.strerror(errno.ENOSPC)
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    why = error if found is None else found.strerror
    return " ".join(str(why).split())[:200]


def differences(one: Any, other: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the values in which two nested mappings differ, by their paths."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return {} if one == other else {prefix: (one, other)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*one, *other}):
        path = f"{prefix}.{key}" if prefix else str(key)
        found |= differences(one.get(key), other.get(key), path)
    return found
