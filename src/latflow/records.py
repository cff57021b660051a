"""What made a file of the results: the records that jobs leave (`latflow.jobs`), told.

A record is `<results>/provenance/<rule>/<job>.json`; it names the job's outputs
relative to the results folder, so that the folder may be moved.

Public: `find_record`, `Found`, `describe`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from latflow.errors import UserError
from latflow.jobs import file_digest


@dataclass(frozen=True)
class Found:
    """The record of the job that made a file.

    Attributes:
        file: the file asked for.
        name: its path in the results folder.
        record: rule, wildcards, inputs, outputs, digests, versions, commit, times.
        is_declared: whether the job names the file as its output; otherwise the file
            lies in a folder with outputs of that job alone.
        state: `unchanged`, `changed` or `gone` since the job; `not compared` for files
            that are very large or not declared.
    """

    file: Path
    name: str
    record: Mapping[str, Any]
    is_declared: bool
    state: str


def find_record(file: str | Path) -> Found:
    """Find the job that made a file, and whether the file is still what it made.

    Args:
        file: any file under `results/<experiment>`.

    Raises:
        UserError: the file is not in a results folder, or no job has recorded it.
    """
    path = Path(file).resolve()
    results = next((p for p in path.parents if (p / "provenance").is_dir()), None)
    if results is None:
        raise UserError(
            "not in the results of an experiment, or those were made before jobs kept "
            "records",
            file=file,
            remedy="name a file below results/<experiment>",
        )
    name = path.relative_to(results).as_posix()
    records = list(_records(results / "provenance"))
    for record in records:
        if name in record["outputs"]:
            state = _state(path, record["outputs"][name])
            return Found(path, name, record, is_declared=True, state=state)
    beside = [r for r in records if _shares_folder(name, r["outputs"])]
    if len(beside) == 1 and path.is_file():
        return Found(path, name, beside[0], is_declared=False, state="not compared")
    raise UserError(
        "no record of the job that made it",
        file=file,
        remedy="logs and benchmarks have none; other files get theirs when they are "
        "made again: snakemake --forcerun <rule>",
    )


def describe(found: Found) -> str:
    """Tell a record in lines of `key: value` (YAML)."""
    record = found.record
    lines: dict[str, Any] = {"file": found.name, "state": found.state}
    if not found.is_declared:
        lines["note"] = "not a declared output; made by the job of its folder"
    lines["rule"] = record["rule"]
    lines["wildcards"] = record["wildcards"]
    lines["started"] = record["started"]
    lines["seconds"] = record["seconds"]
    lines["threads"] = record["threads"]
    lines["commit"] = record["commit"]
    for name in ("code_digest", "params_digest", "config_digest"):
        lines[name] = record[name]
    for name in ("seeds", "versions", "inputs", "params"):
        lines[name] = record[name]
    # None: short lists in one line.
    return yaml.safe_dump(
        lines, sort_keys=False, allow_unicode=True, width=88, default_flow_style=None
    )


def _records(folder: Path) -> Iterator[Mapping[str, Any]]:
    """All records below a folder."""
    for path in sorted(folder.glob("*/*.json")):
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(
                f"not a record of a job: {error}",
                file=path,
                remedy="remove it",
            ) from error


def _state(path: Path, made: Mapping[str, Any]) -> str:
    """Whether a file is as its job left it."""
    if not path.is_file():
        return "gone"
    if path.stat().st_size != made["bytes"]:
        return "changed"
    if "sha256" not in made:
        return "not compared"
    return "unchanged" if file_digest(path) == made["sha256"] else "changed"


def _shares_folder(name: str, outputs: Mapping[str, Any]) -> bool:
    """Whether outputs of a job lie in the folder of a file, or in one above it."""
    folders = {Path(output).parent for output in outputs} - {Path()}
    return any(parent in folders for parent in Path(name).parents)
