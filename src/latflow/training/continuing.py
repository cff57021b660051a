"""Go on with a training under other options: `training.continue_from: last`.

An unchanged training continues by itself. One whose learning rate, say, was changed is
another training, with its own folder of checkpoints: there the checkpoints of the last
training of the same network are taken over, with a record of what has changed. The
record is part of what identifies the new training, and a line of its log.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import write_json
from latflow.training.checkpoint import (
    CheckpointStore,
    Position,
    State,
    differences,
    digest_of,
    read_checkpoint,
)

log = logging.getLogger(__name__)
Continued = dict[str, Any]
FINISHED = "finished"  # the folder of the last training that has ended
_RECORD = "continued.json"
# What may change on the way: nothing that parameters, optimizer or data are shaped by,
# nor which epochs are averaged, whose checkpoints may be gone.
_MAY_CHANGE = (
    "continued",
    "schedule",
    *(
        f"training.{name}"
        for name in (
            "clip_norm",
            "continue_from",
            "dev_interval",
            "epochs",
            "gradient_noise",
            "l2",
            "learning_rate",
            "max_change",
            "max_norm",
            "patience",
            "schedule",
            "warmup_steps",
        )
    ),
)


def keep_finished(folder: Path) -> None:
    """Keep the checkpoints of a training that has ended, instead of those before.

    They lie apart, so that the same training, made again, begins at its beginning.

    Args:
        folder: of the training.
    """
    kept = folder.parent / FINISHED
    shutil.rmtree(kept, ignore_errors=True)
    folder.rename(kept)


def continue_last(
    checkpoints: Path, folder: Path, identity: Mapping[str, Any]
) -> Continued:
    """Continue a training from the last one of the same network.

    Where it has begun already, it continues from its own checkpoints.

    Args:
        checkpoints: folder of the folders of all trainings of the network.
        folder: of this training.
        identity: what this training depends on.

    Returns:
        The record: `from`, the digest of what that training depended on; `epoch` and
        `batch`, where it stood; `changes`, (before, now) by option.

    Raises:
        UserError: there is no other training, or it differs in more than may change.
    """
    record = folder / _RECORD
    if record.is_file():
        return json.loads(record.read_text(encoding="utf-8"))
    source = _last(checkpoints, folder)
    newest, whole = _newest(source)
    changes = _changes(whole["identity"], identity, source)
    continued = {
        "from": digest_of(whole["identity"]),
        "epoch": newest.epoch,
        "batch": newest.batch,
        "changes": changes,
    }
    _copy_checkpoints(source, newest, folder, {**identity, "continued": continued})
    write_json(record, continued)  # last: without it all is taken over again
    changed = ", ".join(f"{key} {a} -> {b}" for key, (a, b) in changes.items())
    log.info(
        "continues from epoch %d, batch %d of the training %s; changed: %s",
        newest.epoch, newest.batch, source, changed or "nothing",
    )  # fmt: skip
    return continued


def _last(checkpoints: Path, folder: Path) -> Path:
    """Return the folder whose checkpoint was written last, of another training."""
    written = {
        path: path.stat().st_mtime
        for path in checkpoints.glob("*/e*-b*.pt")
        if path.parent != folder
    }
    if not written:
        raise UserError(
            "training.continue_from: no earlier training of this network has left a "
            "checkpoint here",
            file=checkpoints,
            remedy="leave continue_from out: the training begins at its beginning",
        )
    return max(written, key=lambda path: (written[path], path.name)).parent


def _newest(source: Path) -> tuple[Position, State]:
    """Return the newest checkpoint of a training that can be read.

    Raises:
        UserError: none can.
    """
    positions = CheckpointStore(source, {}).positions()
    for position in reversed(positions[1:]):
        try:
            return position, read_checkpoint(source / position.file_name)
        except UserError as error:
            log.warning("%s; trying the one before", error)
    return positions[0], read_checkpoint(source / positions[0].file_name)


def _changes(
    before: Mapping[str, Any], now: Mapping[str, Any], source: Path
) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two trainings, by option: before and now.

    Raises:
        UserError: what may not change does.
    """
    found = differences(before, json.loads(json.dumps(now)))
    fixed = [key for key in found if not _may_change(key)]
    if fixed:
        raise UserError(
            f"training.continue_from: the last training differs in {', '.join(fixed)}",
            file=source,
            remedy="set these as they were, or leave continue_from out to train again",
        )
    hidden = ("training.continue_from", "continued")
    return {
        key: pair
        for key, pair in found.items()
        if not any(_is_below(key, name) for name in hidden)
    }


def _may_change(key: str) -> bool:
    """Return whether a training may continue when the value of a path has changed."""
    return any(_is_below(key, name) for name in _MAY_CHANGE)


def _is_below(key: str, name: str) -> bool:
    """Return whether a path is another one, or leads into it."""
    return key == name or key.startswith(f"{name}.")


def _copy_checkpoints(
    source: Path, newest: Position, folder: Path, identity: Mapping[str, Any]
) -> None:
    """Write the checkpoints and the log of another training as those of this one."""
    shutil.rmtree(folder, ignore_errors=True)
    earlier = CheckpointStore(source, {}).positions()
    ends = [p for p in earlier if p.batch == 0 and p < newest]
    store = CheckpointStore(folder, identity, keep=len(ends) + 1)
    for name in ("log.jsonl", "tensorboard"):
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        elif (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    for position in (*ends, newest):
        state = read_checkpoint(source / position.file_name)["state"]
        if position == newest:
            _log_continuation(folder / "log.jsonl", state["training"], newest, identity)
        store.save(position, state, ())


def _log_continuation(
    file: Path, training: State, at: Position, identity: Mapping[str, Any]
) -> None:
    """Add a line to a log, behind what the checkpoint has seen of it.

    Args:
        file: the log.
        training: the checkpoint's `TrainingState`; its offset is moved behind the line.
        at: the checkpoint.
        identity: holds the record.
    """
    line = {
        "kind": "continued",
        "epoch": at.epoch,
        "batch": at.batch,
        "step": training["step"],
        **identity["continued"],
    }
    os.truncate(file, training["log_offset"])
    with file.open("ab") as stream:
        stream.write(json.dumps(line).encode() + b"\n")
        training["log_offset"] = stream.tell()
