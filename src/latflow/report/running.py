"""Sections on the run itself: speed, memory, configuration, versions.

Public: `speed_section`, `provenance_section`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from latflow.files import read_lines
from latflow.provenance import git_state, versions
from latflow.report import figures
from latflow.report.inputs import Results, read_json
from latflow.report.page import (
    Column,
    Details,
    Figure,
    Heading,
    Section,
    Table,
    missing,
    text_column,
)

# Columns of the table on decoding, and where `decode.json` holds them.
_FACTOR = "real_time_factor_per_core"
_DECODING = {
    "utterances": ("utterances",),
    "speech (s)": ("audio_seconds",),
    "real-time factor a core": (_FACTOR, "both"),
    "of it search": (_FACTOR, "search"),
    "wall time (s)": ("wall_seconds",),
    "threads": ("threads",),
    "beam": ("beam",),
    "active tokens a frame": ("mean_active_tokens",),
    "lattice arcs a frame": ("mean_lattice_depth",),
}


@dataclass
class RuleCost:
    """What the jobs of one rule took, as Snakemake measured it.

    Attributes:
        jobs: number of jobs.
        seconds: wall time of all jobs.
        longest: wall time of the longest job, seconds.
        cpu_seconds: processor time of all jobs.
        max_rss: resident memory of the largest job, MiB.
    """

    jobs: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    cpu_seconds: float = 0.0
    max_rss: float = 0.0

    def add(self, measured: Mapping[str, Any]) -> None:
        """Count one job; Snakemake leaves out what it could not measure."""
        seconds = _number(measured.get("s"))
        self.jobs += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.cpu_seconds += _number(measured.get("cpu_time"))
        self.max_rss = max(self.max_rss, _number(measured.get("max_rss")))


def speed_section(results: Results) -> Section:
    """Real-time factors of decoding, and what each rule of the workflow took."""
    lead = (
        "What the experiment cost. The real-time factor is processing time over the "
        "length of the speech: below 1 is faster than speaking. Jobs may have run "
        "beside each other, so their times add up to more than the wait."
    )
    section = Section("speed", "Speed and memory", lead)
    decoding = [*_decoding_rows(results)]
    if decoding:
        names = list(dict.fromkeys(key for row in decoding for key in row))
        columns = [Column(n, is_number=n not in {"system", "set"}) for n in names]
        rows = [[row.get(name, "") for name in names] for row in decoding]
        section.blocks += [Heading("Decoding"), Table(columns, rows)]
    else:
        section.blocks.append(missing("decoding", "decode"))
    costs = rule_costs(results / "benchmarks")
    if costs:
        section.blocks += [Heading("Rules of the workflow"), *_cost_blocks(costs)]
    else:
        section.blocks.append(missing("benchmarks", "all"))
    return section


def provenance_section(results: Results, *, date: str) -> Section:
    """Configuration and versions, to run the same again.

    Args:
        results: the experiment.
        date: when the report was written.
    """
    lead = "Everything needed to run the same experiment again."
    section = Section("provenance", "Configuration and versions", lead)
    source = Path(__file__).resolve().parent
    rows = [["report written", date], ["source commit", git_state(source)]]
    rows += [[name, version] for name, version in versions().items()]
    columns = [text_column("what"), text_column("version")]
    section.blocks.append(Table(columns, rows))
    config = json.loads(json.dumps(results.config))
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    section.blocks.append(Details("Complete configuration (YAML)", text))
    return section


def rule_costs(folder: Path) -> dict[str, RuleCost]:
    """Sum up Snakemake's benchmark files, `<folder>/<rule>/*.jsonl` (or `.tsv`).

    Returns:
        Rule -> costs, longest first; empty where nothing was measured.
    """
    costs: dict[str, RuleCost] = {}
    for path in sorted(folder.glob("*/*")):
        for measured in _measurements(path):
            costs.setdefault(path.parent.name, RuleCost()).add(measured)
    return dict(sorted(costs.items(), key=lambda item: (-item[1].seconds, item[0])))


def _measurements(path: Path) -> Iterator[Mapping[str, Any]]:
    """Jobs of one benchmark file."""
    if path.suffix == ".jsonl":
        for _, line in read_lines(path):
            if line.strip():
                yield json.loads(line)
    elif path.suffix in {".tsv", ".txt"}:
        lines = [line.split("\t") for _, line in read_lines(path)]
        for row in lines[1:]:
            yield dict(zip(lines[0], row, strict=False))


def _cost_blocks(costs: Mapping[str, RuleCost]) -> Iterator[Figure | Table]:
    """Drawing and table of what the rules took."""
    shown = {rule: (c.seconds, c.max_rss) for rule, c in costs.items()}
    yield Figure(figures.rule_costs(shown), "Wall time and peak memory of each rule.")
    columns = [text_column("rule"), Column("jobs"), Column("wall time (s)")]
    columns += [Column("longest job (s)"), Column("processor time (s)")]
    rows = [
        [
            rule,
            str(cost.jobs),
            f"{cost.seconds:.1f}",
            f"{cost.longest:.1f}",
            f"{cost.cpu_seconds:.1f}",
            f"{cost.max_rss:.0f}",
        ]
        for rule, cost in costs.items()
    ]
    yield Table([*columns, Column("peak memory (MiB)")], rows)


def _decoding_rows(results: Results) -> Iterator[dict[str, str]]:
    """What each `decode.json` says, one mapping a system and set."""
    for system in results.systems:
        for name in results.evaluation_sets:
            found = read_json(results / f"decode/{system}/{name}/decode.json")
            if found is not None:
                shown = {
                    title: _short(value)
                    for title, path in _DECODING.items()
                    if (value := _at(found, path)) is not None
                }
                yield {"system": system, "set": name, **shown}


def _at(found: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """A number inside nested objects; None if it is not there."""
    value: Any = found
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def _short(value: float) -> str:
    """A number for a table."""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _number(value: object) -> float:
    """A measurement; 0 where Snakemake wrote that it has none."""
    try:
        number = float(str(value))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
