"""Figures of benchmarks by commit: kept in `benchmarks/history`, plotted on a page.

    python benchmarks/criteria.py | python benchmarks/history.py add criteria
    python benchmarks/history.py page --out results/benchmarks.html

`add` keeps what a benchmark prints (JSON) under the commit that is checked out, which
must have no changes: figures of code that nobody has say nothing. Ratios to a peer of
the same run are plotted, since they hold on any machine; seconds are in tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from latflow.files import write_json
from latflow.report.build import now, write_page
from latflow.report.figures import WIDTH, canvas, legend_beside, render, series_colour
from latflow.report.page import Block, Figure, Section, Table, rows_of

HISTORY = Path(__file__).parent / "history"
# Words in the names of figures that compare with a peer.
COMPARING = ("ratio", "speed_up", "times_faster")
MOST_CURVES = 6  # of a benchmark


def main() -> None:
    """Add figures, or write the page."""
    arguments = _arguments()
    if arguments.action == "add":
        print(add(arguments.name, json.load(sys.stdin), HISTORY))
    else:
        write_page_of(HISTORY, arguments.out)
        print(arguments.out.resolve())


def add(name: str, figures: Mapping[str, Any], history: Path) -> Path:
    """Keep the figures of a benchmark under the commit that is checked out.

    Returns:
        The file that they are in, with those of other benchmarks.
    """
    if _git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("history: there are changes that no commit has")
    commit, date = _git("log", "-1", "--format=%h %cs").split()
    path = history / f"{date}-{commit}.json"
    kept = json.loads(path.read_text()) if path.is_file() else {}
    found = {
        "commit": commit,
        "date": date,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "figures": {**kept.get("figures", {}), name: figures},
    }
    history.mkdir(exist_ok=True)
    write_json(path, found)
    return path


def table_of(history: Path) -> pd.DataFrame:
    """Return all figures: `commit`, `date`, `benchmark`, `figure`, `value` a row."""
    rows = []
    for path in sorted(history.glob("*.json")):
        kept = json.loads(path.read_text())
        for name, figures in kept["figures"].items():
            rows += [
                [kept["commit"], kept["date"], name, figure, value]
                for figure, value in numbers(figures)
            ]
    columns = ["commit", "date", "benchmark", "figure", "value"]
    return pd.DataFrame(rows, columns=columns)


def numbers(figures: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers of nested figures with where they stand, `digits.ratio`."""
    if isinstance(figures, Mapping):
        for key, value in figures.items():
            yield from numbers(value, f"{place}.{key}" if place else str(key))
    elif isinstance(figures, int | float) and not isinstance(figures, bool):
        yield place, float(figures)


def write_page_of(history: Path, out: Path) -> None:
    """Write the page of all figures that are kept."""
    table = table_of(history)
    if table.empty:
        raise SystemExit(f"history: nothing is kept in {history}")
    sections = [
        Section(str(name), str(name), "", list(_blocks(rows)))
        for name, rows in table.groupby("benchmark")
    ]
    commits = table["commit"].nunique()
    summary = f"{table['benchmark'].nunique()} benchmarks at {commits} commits."
    out.parent.mkdir(parents=True, exist_ok=True)
    write_page(out, "Benchmarks", summary, sections, date=now())


def _blocks(rows: pd.DataFrame) -> Iterator[Block]:
    """Yield the curves of a benchmark's ratios, and all of its figures by commit."""
    is_ratio = rows["figure"].str.contains("|".join(COMPARING))
    compared = list(rows[is_ratio]["figure"].unique())[:MOST_CURVES]
    wide = rows.pivot_table("value", "figure", ["date", "commit"], sort=True)
    if compared:
        yield Figure(_curves(wide.loc[compared]), "Ratios to the peer, by commit.")
    wide.columns = [f"{date} {commit}" for date, commit in wide.columns]
    shown = wide.map(lambda value: f"{value:.4g}" if pd.notna(value) else "")
    yield Table(rows_of(shown.rename_axis("figure").reset_index()), text=["figure"])


def _curves(wide: pd.DataFrame) -> str:
    """Draw figures (rows) over commits (columns)."""
    ticks = [f"{commit}\n{date}" for date, commit in wide.columns]
    with canvas(WIDTH, 3.0) as figure:
        axes = figure.subplots()
        for i, (name, values) in enumerate(wide.iterrows()):
            known = values.notna().to_numpy().nonzero()[0]
            axes.plot(
                known,
                values.iloc[known],
                marker="o",
                color=series_colour(i),
                label=str(name),
            )
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_ylim(bottom=0)
        legend_beside(axes)
        return render(figure, "figures by commit")


def _git(*words: str) -> str:
    """Return what git prints of this checkout."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.check_output(command, text=True).strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    adding = actions.add_parser("add", help="keep JSON of standard input")
    adding.add_argument("name", help="of the benchmark")
    page = actions.add_parser("page", help="plot what is kept")
    page.add_argument("--out", type=Path, default=Path("results/benchmarks.html"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
