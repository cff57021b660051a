"""Sections on the run itself: speed, memory, configuration, versions.

Public: `speed_section`, `provenance_section`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from latflow.provenance import git_state, versions
from latflow.report import figures
from latflow.report.costs import JobCost, read_costs, sum_by_rule
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

# Columns of the table on rules -> attribute of a cost and form of its number.
_COSTS = {
    "jobs": ("jobs", "d"),
    "wall time (s)": ("seconds", ".1f"),
    "longest job (s)": ("longest", ".1f"),
    "processor time (s)": ("cpu_seconds", ".1f"),
    "processors busy": ("mean_load", ".2f"),
    "peak memory (MiB)": ("max_rss", ".0f"),
    "read (MiB)": ("io_in", ".0f"),
    "written (MiB)": ("io_out", ".0f"),
    "GPU busy": ("gpu_share", ".1%"),
    "speech gone through (h)": ("audio_hours", ".2f"),
    "speech an hour (h)": ("speed", ".1f"),
}


def speed_section(results: Results) -> Section:
    """Real-time factors of decoding, and what each rule of the workflow took."""
    lead = (
        "What the experiment cost. The real-time factor is processing time over the "
        "length of the speech: below 1 is faster than speaking. Jobs may have run "
        "beside each other, so their times add up to more than the wait. Each job by "
        "itself is in cost.tsv."
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
    costs = sum_by_rule(read_costs(results.folder))
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


def _cost_blocks(costs: Mapping[str, JobCost]) -> Iterator[Figure | Table]:
    """Drawing and table of what the rules took."""
    shown = {rule: (c.seconds, c.max_rss or 0.0) for rule, c in costs.items()}
    yield Figure(figures.rule_costs(shown), "Wall time and peak memory of each rule.")
    # A column that no rule has anything in would only be in the way (no GPU, say).
    titles = {
        title: shape
        for title, shape in _COSTS.items()
        if any(getattr(cost, shape[0]) is not None for cost in costs.values())
    }
    rows = [
        [
            rule,
            *(
                "" if (value := getattr(cost, name)) is None else f"{value:{form}}"
                for name, form in titles.values()
            ),
        ]
        for rule, cost in costs.items()
    ]
    yield Table([text_column("rule"), *map(Column, titles)], rows)


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
