"""How far `latflow plan` is wrong: each earlier run predicted from the others.

    python benchmarks/cost_model.py [NAME=results/x ...] [--lacking] [--write TABLE]

Without runs: of the figures that come with latflow. Runs named here take the place of
those of their name, or come on top; `--write` writes the table, which is
`src/latflow/report/measured_costs.tsv` in the package. Two results of one recipe go by
one name (NAME=a NAME=b). With `--lacking` only rules are taken of them that no other
run has shown: `benchmarks/rarer.yaml` is a recipe for such.

Prints JSON: factors between predicted and measured (median, 90 % quantile), and by run
measured and predicted processor time, largest memory and disk of the jobs that could be
predicted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

from latflow.report.cost_figures import (
    AMOUNTS,
    FIGURES,
    MEASURED,
    Run,
    packaged_figures,
)
from latflow.report.cost_model import error_factors, leave_one_out, whole
from latflow.scoring.results import write_table


def figures_of(runs: list[str], *, are_lacking: bool = False) -> pd.DataFrame:
    """Return the packaged figures, with runs instead of their namesakes.

    Args:
        runs: NAME=RESULTS.
        are_lacking: take of them only rules that no other run has shown.
    """
    new = [
        Run(Path(folder)).figures().assign(run=name)
        for name, _, folder in (run.partition("=") for run in runs)
    ]
    names = {name for table in new for name in table["run"]}
    old = packaged_figures()
    tables = [old[~old["run"].isin(names)], *new]
    if are_lacking:
        shown = set(tables[0]["rule"].map(whole))
        tables[1:] = [one[~one["rule"].map(whole).isin(shown)] for one in new]
    table = pd.concat([table for table in tables if len(table)])
    # What one of two results of a recipe was copied from is there once.
    same = ["run", "rule", "job", "cpu_seconds", "wall_seconds"]
    return table.drop_duplicates(same).sort_values(["rule", "run", "job"])


def main() -> None:
    """Parse the command line, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="NAME=RESULTS")
    parser.add_argument("--lacking", action="store_true")
    parser.add_argument("--write", type=Path, metavar="TABLE")
    arguments = parser.parse_args()
    figures = figures_of(arguments.runs, are_lacking=arguments.lacking)
    left = leave_one_out(figures)
    found = {"jobs": len(left), "factors": error_factors(left), "runs": {}}
    for run, jobs in left.groupby("run"):
        facts: dict[str, float] = {"jobs": int((figures["run"] == run).sum())}
        facts["predicted_jobs"] = len(jobs)
        for name, method in (
            ("cpu_seconds", "sum"),
            ("peak_memory_mib", "max"),
            ("disk_mib", "sum"),
        ):
            for column in (name, f"{name}_predicted"):
                facts[column] = round(float(jobs[column].agg(method)), 1)
        found["runs"][run] = facts
    if arguments.write is not None:
        shown = figures.copy()
        for name in ("gpu", *MEASURED, *AMOUNTS):
            shown[name] = [f"{x:.4g}" if x == x else "" for x in figures[name]]
        write_table(arguments.write, shown[FIGURES])
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
