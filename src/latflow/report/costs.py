"""What the jobs of an experiment took: time, memory, traffic, and speech gone through.

Snakemake measures each job (`<results>/benchmarks/<rule>/<job>.jsonl`), and each job
leaves a record of what it read (`<results>/provenance/<rule>/<job>.json`, see
`latflow.jobs`); this module puts the two together.

Public: `summarise_costs`, `read_costs`, `sum_by_rule`, `JobCost`, `COLUMNS`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from latflow.files import atomic_output, read_lines
from latflow.report.inputs import read_json

# Inputs that stand for the speech of a split: a stage that reads one goes over it.
_SPEECH = {"meta.json", "cuts.jsonl.gz", "lattices.ark", "recordings.jsonl.gz"}


@dataclass(frozen=True)
class JobCost:
    """What a job took, or all jobs of a rule. None: not measured, or does not apply.

    Attributes:
        rule: name of the rule.
        job: name of the job within the rule: its wildcards, joined by dots.
        jobs: number of jobs that this counts.
        seconds: wall time.
        longest: wall time of the longest job, seconds.
        cpu_seconds: processor time with that of its child processes.
        max_rss: resident memory at its largest, MiB.
        io_in: read from disk, MiB (not what the page cache served).
        io_out: written to disk, MiB.
        gpu_share: share of the wall time in which the GPU worked, 0 to 1.
        audio_hours: speech of the split that it goes over.
    """

    rule: str
    job: str
    jobs: int = 1
    seconds: float = 0.0
    longest: float = 0.0
    cpu_seconds: float | None = None
    max_rss: float | None = None
    io_in: float | None = None
    io_out: float | None = None
    gpu_share: float | None = None
    audio_hours: float | None = None

    @property
    def mean_load(self) -> float | None:
        """Processors kept busy, on average."""
        if self.cpu_seconds is None or self.seconds <= 0:
            return None
        return self.cpu_seconds / self.seconds

    @property
    def speed(self) -> float | None:
        """Hours of speech gone through in an hour of wall time."""
        if self.audio_hours is None or self.seconds <= 0:
            return None
        return self.audio_hours / (self.seconds / 3600)


# Columns of cost.tsv -> attribute and decimals.
COLUMNS: Mapping[str, tuple[str, int]] = {
    "wall_seconds": ("seconds", 2),
    "cpu_seconds": ("cpu_seconds", 2),
    "mean_load": ("mean_load", 2),
    "peak_memory_mib": ("max_rss", 1),
    "read_mib": ("io_in", 1),
    "written_mib": ("io_out", 1),
    "gpu_share": ("gpu_share", 3),
    "audio_hours": ("audio_hours", 4),
    "audio_hours_per_hour": ("speed", 2),
}


def summarise_costs(results_dir: str | Path, out_table: str | Path) -> None:
    """Write `cost.tsv`: a row a job, rules that took longest first.

    Args:
        results_dir: `results/<experiment>`.
        out_table: tab-separated; columns `rule`, `job` and those of `COLUMNS`, empty
            where nothing was measured.
    """
    costs = read_costs(Path(results_dir))
    order = {rule: rank for rank, rule in enumerate(sum_by_rule(costs))}
    lines = ["\t".join(["rule", "job", *COLUMNS])]
    for cost in sorted(costs, key=lambda c: (order[c.rule], c.job)):
        cells = [
            _cell(getattr(cost, name), digits) for name, digits in COLUMNS.values()
        ]
        lines.append("\t".join([cost.rule, cost.job, *cells]))
    with atomic_output(out_table) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_costs(results: Path) -> list[JobCost]:
    """Costs of all jobs that Snakemake has measured, by rule and job."""
    hours = dict(_split_hours(results))
    return [
        _cost(path, measured, results, hours)
        for path in sorted((results / "benchmarks").glob("*/*.jsonl"))
        for measured in _measurements(path)
    ]


def sum_by_rule(costs: Iterable[JobCost]) -> dict[str, JobCost]:
    """Rule -> costs of its jobs together (memory: of the largest), longest first."""
    jobs: dict[str, list[JobCost]] = {}
    for cost in costs:
        jobs.setdefault(cost.rule, []).append(cost)
    sums = {rule: _together(rule, found) for rule, found in jobs.items()}
    return dict(sorted(sums.items(), key=lambda item: (-item[1].seconds, item[0])))


def _together(rule: str, jobs: list[JobCost]) -> JobCost:
    """Costs of the jobs of one rule."""
    on_gpu = [j for j in jobs if j.gpu_share is not None]
    gpu_seconds = _total((j.gpu_share or 0) * j.seconds for j in on_gpu)
    spent_there = _total(j.seconds for j in on_gpu)
    return JobCost(
        rule=rule,
        job="",
        jobs=len(jobs),
        seconds=sum(j.seconds for j in jobs),
        longest=max(j.seconds for j in jobs),
        cpu_seconds=_total(j.cpu_seconds for j in jobs),
        max_rss=max((j.max_rss for j in jobs if j.max_rss is not None), default=None),
        io_in=_total(j.io_in for j in jobs),
        io_out=_total(j.io_out for j in jobs),
        gpu_share=gpu_seconds / spent_there if gpu_seconds and spent_there else None,
        audio_hours=_total(j.audio_hours for j in jobs),
    )


def _total(values: Iterable[float | None]) -> float | None:
    """Sum of what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _cost(
    path: Path, measured: Mapping[str, Any], results: Path, hours: Mapping[str, float]
) -> JobCost:
    """One job: Snakemake's measurements and the job's own record."""
    rule, job = path.parent.name, path.name.removesuffix(path.suffix)
    record = read_json(results / "provenance" / rule / f"{job}.json") or {}
    seconds = _number(measured.get("s")) or 0.0
    # Snakemake looks every 30 s and misses what comes after its last look; the job
    # knows to the end, but not of children that it has left behind.
    times = (_number(measured.get("cpu_time")), _number(record.get("cpu_seconds")))
    return JobCost(
        rule,
        job,
        seconds=seconds,
        longest=seconds,
        cpu_seconds=max((t for t in times if t is not None), default=None),
        max_rss=_number(measured.get("max_rss")),
        io_in=_number(measured.get("io_in")),
        io_out=_number(measured.get("io_out")),
        gpu_share=_number(record.get("gpu_share")),
        audio_hours=hours.get(_split_of(record, hours) or ""),
    )


def _split_of(record: Mapping[str, Any], splits: Iterable[str]) -> str | None:
    """The split that a job goes over: its own, or that of the first speech it reads."""
    named = record.get("wildcards", {}).get("split")
    if named is not None:
        return named
    known = set(splits)
    paths = map(PurePath, record.get("inputs", []))
    found = (p.parent.name for p in paths if p.name in _SPEECH)
    return next((name for name in found if name in known), None)


def _split_hours(results: Path) -> Iterator[tuple[str, float]]:
    """(split, hours of its frames)."""
    for path in sorted(results.glob("frames/*/meta.json")):
        meta = read_json(path) or {}
        yield path.parent.name, meta["num_frames"] * meta["frame_shift"] / 3600


def _measurements(path: Path) -> Iterator[Mapping[str, Any]]:
    """Jobs of one benchmark file."""
    for _, line in read_lines(path):
        if line.strip():
            yield json.loads(line)


def _number(value: object) -> float | None:
    """A measurement; None where there is none (Snakemake writes `NA` or null)."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _cell(value: float | None, digits: int) -> str:
    """A number for the table."""
    return "" if value is None else f"{value:.{digits}f}"
