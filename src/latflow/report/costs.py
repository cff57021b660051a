"""Costs of an experiment's jobs: `cost.tsv`.

Snakemake measures each job (`<results>/benchmarks/<rule>/<job>.jsonl`), and each job
leaves a record of what it read (`<results>/provenance/<rule>/<job>.json`, see
`latflow.workflow.jobs`); this module puts the two together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from latflow.features.frame_times import frames_amount
from latflow.parts import share_of
from latflow.report.inputs import checked, read_json
from latflow.report.records import Benchmark, Job
from latflow.scoring.results import write_table
from latflow.text_files import read_json_lines

# Inputs that stand for the speech of a split: a stage that reads one goes over it.
_SPEECH = {"meta.json", "cuts.jsonl.gz", "lattices.ark", "recordings.jsonl.gz"}
# Columns of cost.tsv -> decimals; MiB; `gpu_share` from 0 to 1.
_DECIMALS = {
    "wall_seconds": 2,
    "cpu_seconds": 2,
    "mean_load": 2,
    "peak_memory_mib": 1,
    "read_mib": 1,
    "written_mib": 1,
    "gpu_share": 3,
    "audio_hours": 4,
    "audio_hours_per_hour": 2,
}
# What Snakemake calls a figure of a job -> what the job itself calls it.
_BOTH = {
    "cpu_time": "cpu_seconds",
    "max_rss": "peak_memory_mib",
    "io_in": "read_mib",
    "io_out": "written_mib",
}
#: Columns of the table on rules: title and form of the number.
RULES = {
    "jobs": ("jobs", ".0f"),
    "wall_seconds": ("wall time (s)", ".1f"),
    "longest_seconds": ("longest job (s)", ".1f"),
    "cpu_seconds": ("processor time (s)", ".1f"),
    "mean_load": ("processors busy", ".2f"),
    "peak_memory_mib": ("peak memory (MiB)", ".0f"),
    "read_mib": ("read (MiB)", ".0f"),
    "written_mib": ("written (MiB)", ".0f"),
    "gpu_share": ("GPU busy", ".1%"),
    "audio_hours": ("speech gone through (h)", ".2f"),
    "audio_hours_per_hour": ("speech an hour (h)", ".1f"),
}


def summarize_costs(results_dir: Path, table: Path) -> None:
    """Write `cost.tsv`: a row a job, rules that took longest first.

    Args:
        results_dir: `results/<experiment>`.
        table: file to write; cells are empty where nothing was measured.
    """
    costs = read_costs(results_dir)
    order = {rule: rank for rank, rule in enumerate(sum_by_rule(costs).index)}
    ranked = costs.assign(rank=costs["rule"].map(order)).sort_values(["rank", "job"])
    write_table(table, ranked.drop(columns="rank"), _DECIMALS)


def read_costs(results_dir: Path) -> pd.DataFrame:
    """Read the costs of all jobs that Snakemake has measured.

    Returns:
        A row a job: `rule`, `job` (its wildcards, joined by dots) and the columns of
        cost.tsv; NaN where nothing was measured, or a column does not apply.
    """
    hours = dict(_split_hours(results_dir))
    rows = []
    for path in sorted((results_dir / "benchmarks").glob("*/*.jsonl")):
        rule, job = path.parent.name, path.name.removesuffix(path.suffix)
        record = read_json(results_dir / "provenance" / rule / f"{job}.json", Job)
        record = record or Job()
        speech = hours.get(split_of(record.wildcards, record.inputs, hours) or "")
        if speech is not None:
            speech *= share_of_split(record.wildcards)
        make, remedy = partial(checked, Benchmark), "remove it, and run its rule again"
        rows += [
            [rule, job, *_measured(measured, record), speech]
            for measured in read_json_lines(path, make, "of a benchmark", remedy)
        ]
    names = ["wall_seconds", "cpu_seconds", "peak_memory_mib", "read_mib"]
    names += ["written_mib", "gpu_share", "audio_hours"]
    costs = pd.DataFrame(rows, columns=["rule", "job", *names])
    # Snakemake writes `NA` or null where it has measured nothing.
    costs[names] = costs[names].apply(pd.to_numeric, errors="coerce").astype(float)
    return _with_rates(costs.fillna({"wall_seconds": 0.0}))


def sum_by_rule(costs: pd.DataFrame) -> pd.DataFrame:
    """Sum the costs of the jobs of each rule, longest first.

    Args:
        costs: of `read_costs`.

    Returns:
        By rule: `jobs`, `longest_seconds`, and the columns of cost.tsv; memory is that
        of the largest job, the GPU's share that of the time of jobs that have one.
    """
    by_rule = costs.groupby("rule")
    names = ["cpu_seconds", "read_mib", "written_mib", "audio_hours"]
    sums = by_rule[names].sum(min_count=1)
    sums["jobs"] = by_rule.size()
    sums["wall_seconds"] = by_rule["wall_seconds"].sum()
    sums["longest_seconds"] = by_rule["wall_seconds"].max()
    sums["peak_memory_mib"] = by_rule["peak_memory_mib"].max()
    on_gpu = costs[costs["gpu_share"].notna()]
    busy = (on_gpu["gpu_share"] * on_gpu["wall_seconds"]).groupby(on_gpu["rule"]).sum()
    spent = on_gpu.groupby("rule")["wall_seconds"].sum()
    sums["gpu_share"] = (busy / spent).where(busy > 0)
    ordered = sums.reset_index().sort_values(
        ["wall_seconds", "rule"], ascending=[False, True]
    )
    return _with_rates(ordered.set_index("rule"))


def _with_rates(costs: pd.DataFrame) -> pd.DataFrame:
    """Add processors kept busy, and hours of speech gone through in an hour."""
    seconds = costs["wall_seconds"].where(costs["wall_seconds"] > 0)
    rates = costs.assign(
        mean_load=costs["cpu_seconds"] / seconds,
        audio_hours_per_hour=costs["audio_hours"] / (seconds / 3600),
    )
    return rates[[name for name in ("rule", "job", *RULES) if name in rates]]


def _measured(measured: Benchmark, record: Job) -> list[Any]:
    """Return time, memory, traffic and GPU of a job; not all of them are numbers."""
    # Snakemake looks every 30 s, misses what comes after its last look, and sees no job
    # of the fork server; a job knows to its end, but not of children left behind.
    largest = []
    for theirs, ours in _BOTH.items():
        both = pd.Series([getattr(measured, theirs), getattr(record, ours)])
        largest.append(pd.to_numeric(both, errors="coerce").max())
    return [measured.s, *largest, record.gpu_share]


def split_of(
    wildcards: Mapping[str, str], inputs: Iterable[str], splits: Collection[str]
) -> str | None:
    """Return the split of a job: its own, or that of the first speech it reads."""
    if "split" in wildcards:
        return wildcards["split"]
    paths = map(PurePath, inputs)
    found = (p.parent.name for p in paths if p.name in _SPEECH)
    return next((name for name in found if name in splits), None)


def share_of_split(wildcards: Mapping[str, str]) -> float:
    """Return about which share of its split a job goes over: 1, or that of a part."""
    return share_of(wildcards.get("scatteritem"))


def _split_hours(results_dir: Path) -> Iterator[tuple[str, float]]:
    """Yield (split, hours of its frames)."""
    for path in sorted(results_dir.glob("streams/gmm/frames/*/meta.json")):
        yield path.parent.name, frames_amount(path)[0]
