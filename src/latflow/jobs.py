"""What every script of the workflow does around its stage function.

`with job(snakemake):` opens the job's log, tells a full or read-only disk in one line,
and leaves `<results>/provenance/<rule>/<job>.json` behind when the stage has ended
well. It is apart from `latflow.provenance` since stages do not import it: a change here
makes no result old.

Public: `job`, `check_writable`, `file_digest`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.gpu_load import GpuLoad
from latflow.logs import log_to, log_to_terminal
from latflow.provenance import PACKAGE_ROOT, git_state, versions

# Larger files are known by their size alone: reading them again would cost too much.
LARGEST_DIGESTED = 256 << 20  # bytes
_NUMPY_DISK_FULL = re.compile(r"\d+ requested and \d+ written")


@contextmanager
def job(task: Any) -> Iterator[None]:
    """Run a stage function as a job of the workflow.

    Args:
        task: the object `snakemake` of a script.

    Raises:
        UserError: a file could not be written; whatever the stage raises, as it is.
    """
    log_to_terminal()
    with _writing(task.output):
        log_to(task.log[0])
        # A full disk also refuses the log's lines; they are not worth a traceback each.
        logging.raiseExceptions = False
        record = _record_path(Path(task.log[0]))
        record.unlink(missing_ok=True)
        started, clock = datetime.now(UTC), time.monotonic()
        with GpuLoad(is_asked_for=bool(task.resources.get("gpu"))) as gpu:
            yield
        facts = _facts(task, record.parents[2])
        facts["started"] = started.isoformat(timespec="seconds")
        facts["seconds"] = round(time.monotonic() - clock, 3)
        facts["cpu_seconds"] = round(sum(os.times()[:4]), 3)
        if gpu.share is not None:
            facts["gpu_share"] = round(gpu.share, 4)
        with atomic_output(record) as temporary:
            temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def check_writable(folder: str | Path) -> None:
    """Refuse a results folder that jobs could not write to, before the first of them.

    Raises:
        UserError: the folder, or the one that it would be made in, may not be written.
    """
    path = Path(folder).absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            "may not be written",
            file=existing,
            remedy="check its permissions, and that its disk is not mounted read-only",
        )


@contextmanager
def _writing(outputs: Iterable[str]) -> Iterator[None]:
    """Make a refusal to write one clear line, wherever in the job it came up."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        file = getattr(error, "filename", None)
        where = file or next((str(Path(path).parent) for path in outputs), None)
        number = getattr(error, "errno", None)
        if _is_full(error, number):
            raise UserError(
                "no space left on the disk while writing",
                file=where,
                remedy="free space there, or move the results folder to a larger disk",
            ) from error
        if number in {errno.EACCES, errno.EROFS, errno.EPERM}:
            raise UserError(
                f"refused: {os.strerror(number or 0).lower()}",
                file=where,
                remedy="check the permissions of the file and its folder",
            ) from error
        raise


def _is_full(error: Exception, number: int | None) -> bool:
    """Whether a disk is full, or a quota used up.

    numpy loses the error's number, safetensors (Rust) raises no OSError; both say it in
    words.
    """
    said = str(error)
    return (
        number in {errno.ENOSPC, errno.EDQUOT}
        or "No space left on device" in said
        or _NUMPY_DISK_FULL.search(said) is not None
    )


def _record_path(log: Path) -> Path:
    """`<results>/logs/<rule>/<job>.log` -> `<results>/provenance/<rule>/<job>.json`."""
    folder = log.parents[2] / "provenance" / log.parent.name
    return folder / f"{log.name.removesuffix('.log')}.json"


def _facts(task: Any, results: Path) -> dict[str, Any]:
    """What made the outputs of a job, and what they are."""
    params = json.loads(json.dumps(dict(task.params.items()), default=str))
    code = params.pop("code", None)
    return {
        "rule": task.rule,
        "wildcards": dict(task.wildcards.items()),
        "inputs": [_name(path, results) for path in _files(task.input)],
        "outputs": {
            _name(path, results): _fingerprint(path) for path in _files(task.output)
        },
        "params": params,
        "params_digest": _digest(params),
        "config_digest": _digest(json.loads(json.dumps(task.config, default=str))),
        "code_digest": code,
        "seeds": dict(_seeds(params)),
        "versions": versions(),
        "commit": git_state(PACKAGE_ROOT),
        "threads": task.threads,
    }


def _files(paths: Iterable[str]) -> Iterator[Path]:
    """Files of a list of paths; a folder stands for all that is in it."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.is_file())
        else:
            yield path


def _name(path: Path, results: Path) -> str:
    """A path as records have it: below the results folder relative to that folder."""
    inside = path.is_relative_to(results)
    return str(path.relative_to(results)) if inside else str(path)


def _fingerprint(path: Path) -> dict[str, Any]:
    """Size of a file in bytes and, if it is not very large, its SHA-256."""
    size = path.stat().st_size
    found: dict[str, Any] = {"bytes": size}
    if size <= LARGEST_DIGESTED:
        found["sha256"] = file_digest(path)
    return found


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(values: Any) -> str:
    """16 hexadecimal digits that change when a setting does, whatever the order."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _seeds(values: Any, place: str = "") -> Iterator[tuple[str, int]]:
    """Every setting called `seed` (or `..._seed`), by its place in the parameters."""
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        here = f"{place}.{key}" if place else str(key)
        if str(key).endswith("seed") and isinstance(value, int):
            yield here, value
        yield from _seeds(value, here)
