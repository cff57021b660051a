"""Run a stage function as a job of the workflow; record what made a file.

`with job(snakemake):` opens the job's log, which also gets the stacks of a job that
hangs, reports a full or read-only disk in one line, and leaves a record behind when the
stage has ended well: `<results>/provenance/<rule>/<job>.json`, which names the job's
outputs relative to the results folder, so that the folder may be moved. It is apart
from `latflow.provenance` since stages do not import it: a change here makes no result
old.
"""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import logging
import os
import re
import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

import yaml

from latflow.errors import UserError, is_out_of_memory
from latflow.files import file_digest, is_full_disk, write_json
from latflow.gpu_load import GpuLoad
from latflow.ledger import read_ledger
from latflow.logs import log_to, log_to_terminal, watched
from latflow.options import adapter, read_options
from latflow.provenance import PACKAGE_ROOT, git_state, read_record, versions

log = logging.getLogger(__name__)
# Larger files are known by their size alone: reading them again would cost too much.
LARGEST_DIGESTED = 256 << 20  # bytes
# Of their dev sets any share may be skipped: phones that training lacks.
_WITHOUT_LIMIT = ("make_supervisions", "supervise_flat_start")
# Inputs of a job that determine its split.
_SPLIT = re.compile(r"(?:streams/[^/]+/)?(?:corpus|features|frames)/([^/]+)/[^/]+")


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
        stream = log_to(task.log[0])
        log.info("process %d on %s", os.getpid(), socket.gethostname())
        # A full disk also refuses the log's lines; they are not worth a traceback each.
        logging.raiseExceptions = False
        record = record_path(Path(task.log[0]))
        record.unlink(missing_ok=True)
        started, clock = datetime.now(UTC), time.monotonic()
        with (
            watched(stream, float(task.resources.get("stall_minutes") or 0)),
            GpuLoad(is_asked_for=bool(task.resources.get("gpu"))) as gpu,
        ):
            yield
        facts = _facts(task, record.parents[2])
        facts["started"] = started.isoformat(timespec="seconds")
        facts["seconds"] = round(time.monotonic() - clock, 3)
        facts["cpu_seconds"] = round(sum(os.times()[:4]), 3)
        facts |= _memory_and_traffic()
        if gpu.share is not None:
            facts["gpu_share"] = round(gpu.share, 4)
        write_json(record, facts)


def run(stage: Callable[..., object], task: Any) -> None:
    """Run a stage function as a job, with what its rule gives, by name.

    A parameter takes the rule's params, input or output of its name, or `threads`,
    or `part`, the part of a set that the job is about (wildcard `scatteritem`; None
    without), or of its resources `ranks` (`tasks`) and `hosts` (`mpi`);
    `x_dir` the folder of the file `x` where the rule has no `x_dir`, `out_dir` that of
    the first output. A param `free_x` completes the mapping `x`: a rule gives apart
    what is no reason to run it again. Values are converted to the parameter's
    annotation: strings to paths, mappings to options; an empty list stands for None.
    Only a parameter with a default may be absent. A parameter whose annotation is a
    dataclass is made of what the rule gives for the fields, in the same way.

    Args:
        stage: the function; its parameters are annotated.
        task: the object `snakemake` of a script.

    Raises:
        TypeError: the rule gives nothing for a parameter.
        UserError: as `job`.
    """
    with job(task):
        stage(**_arguments(stage, _given(task), task.rule))


def _memory_and_traffic() -> dict[str, float]:
    """Return largest memory, and what was read and written, of this process; MiB.

    Empty where the system is not Linux, whose units these are.
    """
    with suppress(OSError), Path("/proc/self/io").open() as lines:
        traffic = dict(line.split(": ") for line in lines)
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        found = {
            "peak_memory_mib": largest,
            "read_mib": int(traffic["read_bytes"]),
            "written_mib": int(traffic["write_bytes"]),
        }
        return {name: round(size / 2**20, 1) for name, size in found.items()}
    return {}


def _given(task: Any) -> dict[str, Any]:
    """Return what a rule gives its stage, by name; see `run`."""
    files = {**dict(task.output.items()), **dict(task.input.items())}
    folders = {f"{name}_dir": _folders(paths) for name, paths in files.items()}
    return {
        "out_dir": _folders(next(iter(task.output), ())),
        **folders,
        **files,
        **_completed(dict(task.params.items())),
        "threads": task.threads,
        "part": dict(task.wildcards.items()).get("scatteritem"),
        "ranks": task.resources.get("tasks", 1),
        "hosts": task.resources.get("mpi"),
    }


def _arguments(
    called: Callable[..., object], given: Mapping[str, Any], rule: str
) -> dict[str, Any]:
    """Return the arguments of a stage function, or of a class of one of them."""
    annotations = get_type_hints(called, include_extras=True)
    arguments = {}
    for name, parameter in inspect.signature(called).parameters.items():
        annotation = annotations[name]
        if name in given:
            arguments[name] = _converted(given[name], annotation, name)
        elif is_dataclass(annotation):
            made = cast("type", annotation)
            arguments[name] = made(**_arguments(made, given, rule))
        elif parameter.default is parameter.empty:
            raise TypeError(f"rule {rule} gives no {name} to {called.__name__}")
    return arguments


def _completed(params: dict[str, Any]) -> dict[str, Any]:
    """Return params, those of `free_x` within `x`."""
    free = {name: params[name] for name in params if name.startswith("free_")}
    found = {name: value for name, value in params.items() if name not in free}
    for name, values in free.items():
        whole = name.removeprefix("free_")
        found[whole] = _joined(found[whole], values)
    return found


def _joined(values: Any, others: Any) -> Any:
    """Return two nested mappings as one; no key has a value in both."""
    if not (isinstance(values, Mapping) and isinstance(others, Mapping)):
        return others
    joined = {key: _joined(values.get(key), value) for key, value in others.items()}
    return {**values, **joined}


def _folders(paths: str | Iterable[str]) -> Any:
    """Return the folder of a file, or the folders of files; one if it is of all."""
    if isinstance(paths, str):
        return str(Path(paths).parent)
    folders = list(dict.fromkeys(str(Path(path).parent) for path in paths))
    return folders[0] if len(folders) == 1 else folders


def _converted(value: Any, annotation: Any, name: str) -> Any:
    """Return a value of a rule in the type that a stage function wants."""
    if isinstance(value, Mapping):
        return read_options(annotation, value, name)
    is_list = get_origin(annotation) in {list, tuple, Sequence}
    if is_list and isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        value = list(value)
        if not value and type(None) in get_args(annotation):
            return None
        if len(value) == 1 and not is_list:
            value = value[0]
    return adapter(annotation).validate_python(value)


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
    """Make a refusal to write, and a lack of memory, one clear line wherever it was."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        file = getattr(error, "filename", None)
        where = file or next((str(Path(path).parent) for path in outputs), None)
        number = getattr(error, "errno", None)
        if is_full_disk(error):
            raise UserError(
                "no space left on the disk while writing",
                file=where,
                remedy="free space there, or move the results folder to a larger disk",
            ) from error
        if is_out_of_memory(error):
            raise UserError(
                f"out of memory: {' '.join(str(error).split())[:200]}".rstrip(": "),
                remedy="run fewer jobs side by side, or this one on a larger machine",
            ) from error
        if number in {errno.EACCES, errno.EROFS, errno.EPERM}:
            raise UserError(
                f"refused: {os.strerror(number or 0).lower()}",
                file=where,
                remedy="check the permissions of the file and its folder",
            ) from error
        raise


def record_path(log: Path) -> Path:
    """Return `<results>/provenance/<rule>/<job>.json` of `logs/<rule>/<job>.log`."""
    folder = log.parents[2] / "provenance" / log.parent.name
    return folder / f"{log.name.removesuffix('.log')}.json"


def above_limit(results: str | Path, limit: float) -> Iterator[str]:
    """Yield a line for each finished step that skipped more than may be skipped now.

    Only steps that ran under a greater limit are looked at: the others have kept it.
    The limit is no reason to run a finished step again, so that its results stay.

    Args:
        results: `results/<experiment>`.
        limit: share of utterances that a step may skip.
    """
    folder = Path(results)
    for path in sorted(folder.glob("provenance/*/*.json")):
        record = read_record(path)
        then = record["params"].get("max_skipped_fraction", 0.0)
        is_free = then == 1.0 and record["rule"] in _WITHOUT_LIMIT
        if then <= limit or is_free:
            continue
        for ledger in (Path(name) for name in record["outputs"]):
            if ledger.name != "ledger.jsonl" or not (folder / ledger).is_file():
                continue
            entries = read_ledger(folder / ledger)
            skipped = len({e.utterance for e in entries if e.action == "skipped"})
            total = _num_utterances(folder, record, skipped) if skipped else 0
            if total and skipped / total > limit:
                yield (
                    f"{ledger} has {skipped} of about {total} utterances as skipped, "
                    f"more than ledger.max_skipped_fraction ({limit:g}) allows now; "
                    f"its results stay: remove {ledger} to run the step again"
                )


def _num_utterances(folder: Path, record: Mapping[str, Any], skipped: int) -> int:
    """Return the utterances of the split that a job was about; 0 if not known."""
    from latflow.corpus.json_lines import count_cuts

    found = (_SPLIT.fullmatch(name) for name in record["inputs"])
    split = record["wildcards"].get("split") or next((m[1] for m in found if m), "")
    count = count_cuts(folder / "corpus" / split / "cuts.jsonl.gz")
    is_left_out = record["rule"] == "prepare_corpus"  # of the cuts
    return count + skipped if is_left_out else count


def _facts(task: Any, results: Path) -> dict[str, Any]:
    """Return what made the outputs of a job, and what they are."""
    params = json.loads(json.dumps(dict(task.params.items()), default=str))
    code = params.pop("stage").partition(" ")[2]
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
        "code_digest": code or None,
        "seeds": dict(_seeds(params)),
        "versions": versions(),
        "commit": git_state(PACKAGE_ROOT),
        "threads": task.threads,
    }


def _files(paths: Iterable[str]) -> Iterator[Path]:
    """Return the files of a list of paths; a folder stands for all that is in it."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.is_file())
        else:
            yield path


def _name(path: Path, results: Path) -> str:
    """Return a path as records have it: relative to the results folder if below."""
    inside = path.is_relative_to(results)
    return str(path.relative_to(results)) if inside else str(path)


def _fingerprint(path: Path) -> dict[str, Any]:
    """Return the size of a file in bytes and, if it is not very large, its SHA-256."""
    size = path.stat().st_size
    found: dict[str, Any] = {"bytes": size}
    if size <= LARGEST_DIGESTED:
        found["sha256"] = file_digest(path)
    return found


def _digest(values: Any) -> str:
    """Return 16 hexadecimal digits that change with settings, not their order."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _seeds(values: Any, place: str = "") -> Iterator[tuple[str, int]]:
    """Yield every setting called `seed` (or `..._seed`), by its key."""
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        here = f"{place}.{key}" if place else str(key)
        if str(key).endswith("seed") and isinstance(value, int):
            yield here, value
        yield from _seeds(value, here)


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
    return map(read_record, sorted(folder.glob("*/*.json")))


def _state(path: Path, made: Mapping[str, Any]) -> str:
    """Return whether a file is as its job left it."""
    if not path.is_file():
        return "gone"
    if path.stat().st_size != made["bytes"]:
        return "changed"
    if "sha256" not in made:
        return "not compared"
    return "unchanged" if file_digest(path) == made["sha256"] else "changed"


def _shares_folder(name: str, outputs: Mapping[str, Any]) -> bool:
    """Return whether outputs of a job lie in a file's folder or above it."""
    folders = {Path(output).parent for output in outputs} - {Path()}
    return any(parent in folders for parent in Path(name).parents)
