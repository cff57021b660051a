"""Two runs, or two systems, side by side: errors, settings, code, training, costs.

All comes from the folders `results/<experiment>/` alone: scores, `log.jsonl`, and the
records that each job left behind (`latflow.workflow.jobs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from latflow.errors import UserError
from latflow.report.costs import read_costs, sum_by_rule
from latflow.report.figures import training_curves
from latflow.report.inputs import (
    Line,
    Log,
    read_iterations,
    read_jobs,
    read_json,
    read_log,
)
from latflow.report.page import Block, Figure, Note, Row, Section, Table
from latflow.report.records import Job
from latflow.report.sequence_curves import Panel, panels
from latflow.report.significance import (
    Joined,
    compare_joined,
    corrected,
    interval_text,
    join_scores,
    p_text,
    read_comparison,
    too_few_draws,
)
from latflow.scoring.bootstrap import Comparison
from latflow.scoring.options import BootstrapOptions
from latflow.scoring.results import read_rates

_LONGEST = 80  # characters of a value that is shown


def comparison_sections(
    old: Path,
    new: Path,
    *,
    systems: tuple[str, str] | None = None,
    bootstrap: BootstrapOptions,
    seed: int,
) -> list[Section]:
    """Compare two experiments' folders, or two systems of them.

    Args:
        old: results folder of the run compared with.
        new: results folder of the run in question; may be the same.
        systems: one of the old run and one of the new, that are compared; None for
            those of the same name.
        bootstrap: of the paired comparisons.
        seed: of its draws.

    Raises:
        UserError: a folder is not there, holds no scores, or lacks the system; or it is
            compared with itself.
    """
    for folder in (old, new):
        if not (folder / "wer.tsv").is_file():
            raise UserError(
                "no results of a finished run here (wer.tsv)",
                file=folder,
                remedy="name folders results/<experiment>",
            )
    is_one = old.resolve() == new.resolve()
    if is_one and (systems is None or systems[0] == systems[1]):
        raise UserError(
            "this would be compared with itself",
            file=new,
            remedy="name another folder, or two systems (--systems A B)",
        )
    sections = [
        _rates(old, new, systems, bootstrap, seed),
        _training(old, new, systems),
    ]
    if is_one:
        return sections
    rates, training = sections
    return [rates, _options(old, new), _code(old, new), training, _costs(old, new)]


def _rates(
    old: Path,
    new: Path,
    systems: tuple[str, str] | None,
    bootstrap: BootstrapOptions,
    seed: int,
) -> Section:
    """Compare the systems that both have, or the two, set by set."""
    lead = (
        "On the utterances that both scored against the same words (paired bootstrap; "
        "p is two-sided and corrected for the number of comparisons by Holm). A "
        "negative change is an improvement."
    )
    section = Section("wer", "Word error rates", lead)
    before, after = (_table(folder) for folder in (old, new))
    if systems is not None:
        before, after = (
            _only(table, name, folder)
            for table, name, folder in zip(
                (before, after), systems, (old, new), strict=True
            )
        )
    title = None if systems is None else " -> ".join(systems)
    found: dict[tuple[str, str], Comparison] = {}
    tables: dict[tuple[str, str], pd.DataFrame] = {}
    notes: list[Note] = []
    for key in before.index:
        if key not in after.index:
            continue
        paths = [
            folder / f"score/{table.loc[key, 'of']}/{key[1]}/per_utterance.tsv"
            for folder, table in ((old, before), (new, after))
        ]
        if not all(path.is_file() for path in paths):
            continue
        system, name = title or key[0], key[1]
        joined = join_scores(*paths)
        notes += _left_out(joined, system, name)
        each = compare_joined(joined.table, bootstrap, seed)
        if each is not None:
            found[system, name], tables[system, name] = each, joined.table
    rows = [_rate(key, tables[key], each) for key, each in corrected(found).items()]
    if rows:
        section.blocks.append(Table(rows, {"system", "set", "reading"}))
    else:
        section.blocks.append(Note("The runs share no scored system and set."))
    section.blocks += [*too_few_draws(len(found), bootstrap), *notes]
    for folder, keys, other in ((old, before.index, after), (new, after.index, before)):
        alone = [
            name if systems else f"{system} on {name}"
            for system, name in keys.difference(other.index)
        ]
        if alone:
            section.blocks.append(Note(f"Only in {folder}: {', '.join(alone)}."))
    return section


def _rate(key: tuple[str, str], table: pd.DataFrame, found: Comparison) -> Row:
    """Return the row of a comparison; `table` as of `Joined`."""
    sums = table[["words", "errors", "errors_after"]].sum()
    rates = 100 * sums[["errors", "errors_after"]] / sums["words"]
    return {
        "system": key[0],
        "set": key[1],
        "old WER (%)": f"{rates['errors']:.2f}",
        "new WER (%)": f"{rates['errors_after']:.2f}",
        "change (absolute %)": f"{found.difference:+.2f}",
        "interval (%)": interval_text(found),
        "p": p_text(found.p_value),
        "reading": read_comparison(found),
    }


def _left_out(joined: Joined, system: str, name: str) -> Iterator[Note]:
    """Report which utterances of a set cannot be compared."""
    if joined.differing:
        together = len(joined.table) + len(joined.differing)
        yield Note(
            f"{system} on {name}: {len(joined.differing)} of {together} utterances, "
            f"{joined.differing[0]} first, have other reference words in the two runs "
            "and are left out: other transcripts, or other score.ignore_words or "
            "score.fold_case.",
            is_missing=True,
        )
    if joined.num_single:
        yield Note(
            f"{system} on {name}: {joined.num_single} utterances are in one run alone "
            "and are left out."
        )


def _table(folder: Path) -> pd.DataFrame:
    """Return the systems `of` a run by system and set."""
    table = read_rates(folder)
    assert table is not None
    return table.assign(of=table["system"]).set_index(["system", "set"])[["of"]]


def _only(table: pd.DataFrame, system: str, folder: Path) -> pd.DataFrame:
    """Return the rows of a system, under the name that both have in a comparison.

    Raises:
        UserError: the run has no such system.
    """
    known = dict.fromkeys(table["of"])
    if system not in known:
        raise UserError(
            f"{system} is not among its scored systems",
            file=folder / "wer.tsv",
            remedy=f"name one of {', '.join(known)}",
        )
    return table.loc[[system]].rename(index={system: ""}, level="system")


def _options(old: Path, new: Path) -> Section:
    """List the settings of the recipes that differ."""
    section = Section("options", "Settings that differ", "Of the recipes, by path.")
    name = "provenance/make_report/report.json"
    reports = [read_json(folder / name, Job) for folder in (old, new)]
    recipes = [report.params.get("config", {}) for report in reports if report]
    if len(recipes) < len(reports):
        section.blocks.append(Note("A run has no report yet, which names its recipe."))
        return section
    before, after = (dict(_flat(recipe)) for recipe in recipes)
    rows = [
        {"setting": key, "old": _shown(before.get(key)), "new": _shown(after.get(key))}
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    section.blocks.append(
        Table(rows, {"setting", "old", "new"}) if rows else Note("None.")
    )
    return section


def _code(old: Path, new: Path) -> Section:
    """List the rules whose code or software differs."""
    lead = "Rules that ran with other code (comments and docstrings do not count)."
    section = Section("code", "Code that differs", lead)
    before, after = (read_jobs(folder) for folder in (old, new))
    rules = sorted(
        {
            rule
            for rule, name in before.keys() & after.keys()
            if before[rule, name].code_digest != after[rule, name].code_digest
        }
    )
    text = f"{len(rules)} rules: {', '.join(rules)}." if rules else "None."
    section.blocks.append(Note(text))
    packages = [
        next((each.versions for each in found.values() if each.versions), {})
        for found in (before, after)
    ]
    rows = [
        {
            "package": name,
            "old": packages[0].get(name, ""),
            "new": packages[1].get(name, ""),
        }
        for name in sorted(packages[0].keys() | packages[1].keys())
        if packages[0].get(name) != packages[1].get(name)
    ]
    if rows:
        section.blocks.append(Table(rows, {"package", "old", "new"}))
    return section


def _training(old: Path, new: Path, systems: tuple[str, str] | None) -> Section:
    """Compare the courses of trainings: of networks with the same name, or of two."""
    lead = "Means a frame on dev at the end of epochs: the first, the middle, the last."
    section = Section("training", "Training", lead)
    pairs = [systems] if systems else [(name, name) for name in _trained(old, new)]
    rows: list[Row] = []
    drawn: list[Panel] = []
    iterations: dict[str, pd.DataFrame] = {}
    for pair in pairs:
        runs = list(zip(("old", "new"), (old, new), pair, strict=True))
        courses: dict[str, Log] = {}
        for run, folder, name in runs:
            log = read_log(folder / f"nnet/{name}/log.jsonl")
            if log is not None and log.epochs:
                courses[run] = log
                rows.append(_course(name, run, log.epochs))
            table = read_iterations(folder / f"gmm/{name}")
            if table is not None and len(table):
                iterations[f"{name}, {run}"] = table
        title = " -> ".join(dict.fromkeys(pair))
        for key in ("loss", "objective"):
            lines = {run: _points(log.epochs, key) for run, log in courses.items()}
            lines = {run: points for run, points in lines.items() if points}
            if lines:
                drawn.append(Panel(f"{title}: {key} on dev", lines))
    if drawn:
        curves = panels(drawn, ["old", "new"])
        section.blocks.append(Figure(curves, "Means a frame on dev over the epochs."))
    section.blocks.append(
        Table(rows, {"network", "run"}) if rows else Note("No network in either.")
    )
    if iterations:
        caption = "GMMs: log-likelihood per frame and number of Gaussians."
        section.blocks.append(Figure(training_curves(iterations), caption))
    return section


def _course(name: str, run: str, epochs: Sequence[Line]) -> Row:
    """Return the row of a network's training."""
    row: Row = {"network": name, "run": run, "epochs": len(epochs)}
    chosen = {"first": 0, "middle": len(epochs) // 2, "last": len(epochs) - 1}
    for title, at in chosen.items():
        loss = epochs[at].get("dev", {}).get("loss")
        row[f"dev loss, {title}"] = "" if loss is None else f"{loss:.4f}"
    return row


def _points(epochs: Sequence[Line], key: str) -> list[tuple[float, float]]:
    """Return the means of dev over the epochs that have them."""
    dev = [(line["epoch"], line.get("dev", {}).get(key)) for line in epochs]
    return [(epoch, value) for epoch, value in dev if value is not None]


def _trained(old: Path, new: Path) -> list[str]:
    """Return the names of the systems that either run has trained, sorted."""
    patterns = ("nnet/*/log.jsonl", "gmm/*/iterations.tsv")
    paths = [path for run in (old, new) for each in patterns for path in run.glob(each)]
    return sorted({path.parent.name for path in paths})


def _costs(old: Path, new: Path) -> Section:
    """Compare wall time and memory by rule."""
    lead = "Sums of the jobs' times, and the memory of the largest job."
    section = Section("costs", "Costs", lead)
    before, after = (sum_by_rule(read_costs(folder)) for folder in (old, new))
    section.blocks += _cost_rows(before, after)
    return section


def _cost_rows(before: pd.DataFrame, after: pd.DataFrame) -> Iterator[Block]:
    """Put the rules' costs beside each other, longest first."""
    rows = []
    for rule in before.index.union(after.index, sort=False):
        row: dict[str, str | int] = {"rule": str(rule)}
        for name, title in (("wall_seconds", "s"), ("peak_memory_mib", "MiB")):
            pair = [
                costs[name].to_dict().get(rule, math.nan) for costs in (before, after)
            ]
            for run, value in zip(("old", "new"), pair, strict=True):
                row[f"{run} ({title})"] = "" if math.isnan(value) else f"{value:.0f}"
        rows.append(row)
    yield Table(rows, {"rule"}) if rows else Note("Nothing was measured.")


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values within nested mappings by their paths."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _shown(value: Any) -> str:
    """Return a value as text, cut where it is long."""
    text = "" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
