"""Sections of the report on speed, memory, and what a server holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter

import pandas as pd

from latflow.report import figures
from latflow.report.costs import RULES, read_costs, sum_by_rule
from latflow.report.inputs import Results, read_json, read_table
from latflow.report.page import (
    Block,
    Figure,
    Heading,
    Row,
    Section,
    Table,
    missing,
    rows_of,
)
from latflow.report.records import Decoding

# Columns of the table on decoding -> fields of `decode.json`.
_DECODING = {
    "utterances": "utterances",
    "speech (s)": "audio_seconds",
    "real-time factor a core": "real_time_factor_per_core.both",
    "of it search": "real_time_factor_per_core.search",
    "wall time (s)": "wall_seconds",
    "threads": "threads",
    "beam": "beam",
    "active tokens a frame": "mean_active_tokens",
    "lattice depth (arcs a frame)": "mean_lattice_depth",
}

# Columns of a trial of a server.
_LATENCIES = ("p50", "p90", "p95", "p99", "first_partial")
_COUNTS = ("sessions", "finals", "errors")
_TRIAL = (*_COUNTS, *_LATENCIES, "wer")
_CAPACITY = (
    "How many speakers a server of a packaged system answers in time, on the machine "
    "of the measurement. Clients speak one utterance after another, as fast as people "
    "do; latency is the time from the end of an utterance to its final text. A number "
    "of sessions is held if no final is lost and the 95th percentile of the latency is "
    "within the limit."
)


def speed_section(results: Results) -> Section:
    """Show real-time factors of decoding, and what each rule of the workflow took."""
    lead = (
        "What the experiment cost. The real-time factor is processing time over the "
        "length of the speech: below 1 is faster than speaking. Jobs may have run "
        "beside each other, so their times add up to more than the wait. Each job by "
        "itself is in cost.tsv."
    )
    section = Section("speed", "Speed and memory", lead)
    decoding = [*_decoding_rows(results)]
    if decoding:
        section.blocks += [Heading("Decoding"), Table(decoding, {"system", "set"})]
    else:
        section.blocks.append(missing("decoding", "decode"))
    costs = sum_by_rule(read_costs(results.folder))
    if len(costs):
        section.blocks += [Heading("Rules of the workflow"), *_rule_blocks(costs)]
    else:
        section.blocks.append(missing("benchmarks", "all"))
    return section


def _rule_blocks(costs: pd.DataFrame) -> Iterator[Block]:
    """Draw and list what the rules took."""
    drawn = costs[["wall_seconds", "peak_memory_mib"]].fillna(0.0)
    shown = {str(rule): (row.iloc[0], row.iloc[1]) for rule, row in drawn.iterrows()}
    yield Figure(figures.rule_costs(shown), "Wall time and peak memory of each rule.")
    # A column that no rule has anything in would only be in the way (no GPU, say).
    known = costs.dropna(axis="columns", how="all")
    cells: dict[str, pd.Index | pd.Series] = {"rule": known.index}
    for name in known.columns:
        title, form = RULES[name]
        text = known[name].map(f"{{:{form}}}".format, na_action="ignore")
        cells[title] = text.astype(object).fillna("")
    yield Table(rows_of(pd.DataFrame(cells)), {"rule"})


def _decoding_rows(results: Results) -> Iterator[Row]:
    """Yield what each `decode.json` says, a row a system and set."""
    for system in results.recipe.systems:
        for name in results.recipe.evaluation_sets:
            found = read_json(results / f"decode/{system}/{name}/decode.json", Decoding)
            if found is not None:
                shown = {
                    title: _shown(value)
                    for title, field in _DECODING.items()
                    if (value := attrgetter(field)(found)) is not None
                }
                yield {"system": system, "set": name, **shown}


def _shown(value: float) -> str:
    """Return a number with four digits, or with all of those before the point."""
    whole = isinstance(value, int) or abs(value) >= 1000
    return f"{value:.0f}" if whole else f"{value:.4g}"


def capacity_section(results: Results) -> Section | None:
    """Show latency by sessions; None where the recipe does not ask for it."""
    options = results.options.capacity
    if not options.systems:
        return None
    section = Section("capacity", "Serving capacity", _CAPACITY)
    tables: dict[str, pd.DataFrame] = {}
    for system in options.systems:
        file = results / f"capacity/{system}.tsv"
        table = read_table(file, ["held"], _TRIAL)
        if table is None:
            section.blocks.append(missing(f"the capacity of {system}", "capacity"))
        else:
            tables[system] = table
    if tables:
        section.blocks += _capacity_blocks(tables, options.p95)
    return section


def _capacity_blocks(
    tables: Mapping[str, pd.DataFrame], limit: float
) -> Iterator[Block]:
    """Draw and list the trials."""
    yield Figure(
        figures.latencies(tables, limit),
        "95th percentile of the latency by sessions; trials that lost a final are not "
        "drawn, the dotted line is the limit.",
    )
    for system, table in tables.items():
        held = table.loc[table["held"] == "True", "sessions"].astype(float)
        best = int(held.max()) if len(held) else 0
        yield Heading(f"{system}: {best} sessions")
        yield Table([_capacity_row(trial) for _, trial in table.iterrows()])


def _capacity_row(trial: pd.Series) -> Row:
    """Return the cells of a trial; of one without a final, what there is."""
    row = {name: str(trial[name]) for name in _COUNTS}
    for name in _LATENCIES:
        if trial[name]:
            row[f"{name.replace('_', ' ')} (ms)"] = f"{1000 * float(trial[name]):.0f}"
    if trial["wer"]:
        row["WER (%)"] = f"{float(trial['wer']):.2f}"
    return row
