"""Section on servers: how many sessions those of the packages hold.

Public: `capacity_section`, `latencies`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from latflow.report.figures import (
    MUTED,
    WIDTH,
    bare,
    canvas,
    render,
    series_colour,
)
from latflow.report.inputs import Results, read_table
from latflow.report.page import Block, Figure, Heading, Row, Section, Table, missing

_LEAD = (
    "How many speakers a server of a packaged system answers in time, on the machine "
    "of the measurement. Clients speak one utterance after another, as fast as people "
    "do; latency is the time from the end of an utterance to its final text. A number "
    "of sessions is held if no final is lost and the 95th percentile of the latency is "
    "within the limit."
)


def capacity_section(results: Results) -> Section | None:
    """Latency by sessions; None where the recipe does not ask for it."""
    options = results.options.capacity
    if not options.systems:
        return None
    section = Section("capacity", "Serving capacity", _LEAD)
    tables: dict[str, pd.DataFrame] = {}
    for system in options.systems:
        table = read_table(results / f"capacity/{system}.tsv")
        if table is None:
            section.blocks.append(missing(f"the capacity of {system}", "capacity"))
        else:
            tables[system] = table
    if tables:
        section.blocks += _blocks(tables, options.p95)
    return section


def _blocks(tables: Mapping[str, pd.DataFrame], limit: float) -> Iterator[Block]:
    """Draw and list the trials."""
    yield Figure(
        latencies(tables, limit),
        "95th percentile of the latency by sessions; trials that lost a final are not "
        "drawn, the dotted line is the limit.",
    )
    for system, table in tables.items():
        held = table.loc[table["held"] == "True", "sessions"].astype(int)
        best = int(held.max()) if len(held) else 0
        yield Heading(f"{system}: {best} sessions")
        yield Table([_row(trial) for _, trial in table.iterrows()])


def _row(trial: pd.Series) -> Row:
    """Return the cells of a trial; of one without a final, what there is."""
    row = {name: str(trial[name]) for name in ("sessions", "finals", "errors")}
    for name in ("p50", "p90", "p95", "p99", "first_partial"):
        if trial[name]:
            row[f"{name.replace('_', ' ')} (ms)"] = f"{1000 * float(trial[name]):.0f}"
    if trial["wer"]:
        row["WER (%)"] = f"{float(trial['wer']):.2f}"
    return row


def latencies(tables: Mapping[str, pd.DataFrame], limit: float) -> str:
    """Draw the 95th percentile of the latency over the number of sessions.

    Args:
        tables: system -> its trials, cells as text.
        limit: greatest latency, seconds.
    """
    with canvas(WIDTH, 3.2) as figure:
        axes = figure.subplots()
        for i, (system, table) in enumerate(tables.items()):
            good = table[(table["errors"] == "0") & (table["p95"] != "")]
            axes.plot(
                good["sessions"].astype(int),
                1000 * good["p95"].astype(float),
                marker="o",
                color=series_colour(i),
                label=system,
            )
        axes.axhline(1000 * limit, linestyle=":", color=MUTED)
        axes.set_xlabel("sessions")
        axes.set_ylabel("latency, p95 (ms)")
        axes.set_ylim(bottom=0)
        axes.legend()
        bare(axes, grid="y")
        return render(figure, "Latency of finals over the number of sessions")
