"""Section that answers which system to ship: how much better, at what cost, what next.

Dev chooses the system; the first test set shows how much better it is than each of the
others, on the same redrawn utterances. What to try next: `latflow.report.findings`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from latflow.report.choice import Decision, chosen_on_dev, least_errors, rates_of
from latflow.report.costs import read_costs
from latflow.report.findings import failures, findings
from latflow.report.inputs import Results, read_json
from latflow.report.page import Block, Fact, Heading, Note, Row, Section, Table, missing
from latflow.report.records import Decoding
from latflow.report.significance import (
    could_be_chance,
    interval_text,
    p_text,
    reading,
    too_few_draws,
)
from latflow.scoring.bootstrap import Comparison

_ENOUGH_WORDS = 1000  # of a dev set; with fewer 0.3 % is less than three errors
_SENTENCES = 2  # of test sets; further ones have their numbers alone
# Columns of a comparison, which the chosen system's own row has empty.
_COMPARED = (
    "change (absolute %)",
    "interval (absolute %)",
    "change (relative %)",
    "p",
    "reading",
)
# Rules that make a system, as opposed to using it; their jobs begin with its name.
_MAKING = ("train_", "build_", "make_supervisions", "supervise_", "align_")


@dataclass(frozen=True)
class Headline:
    """The report in a sentence, and the numbers for the top of the page."""

    sentence: str
    facts: list[Fact]


def headline(results: Results) -> Headline:
    """Sum the outcome up: the system that dev is best with, beside the first."""
    table = results.wer
    if table is None or table.empty:
        return Headline("No system has been scored yet.", [])
    rates = rates_of(table)
    rows = {(row["system"], row["set"]): row for row in table.to_dict("records")}
    parts, facts = [], []
    for name in results.recipe.test_sets or ["dev"]:
        chosen = chosen_on_dev(rates, name)
        if chosen is None:
            continue
        first = next(rows[key] for key in rates if key[1] == name)
        best = rows[chosen, name]
        interval = f"interval {best['ci_low']} to {best['ci_high']} %"
        part = (
            f"{best['system']} gets {best['wer']} % of the {best['words']} words of "
            f"{name} wrong ({interval})"
        )
        if first is not best:
            part += f", where {first['system']} gets {first['wer']} %"
        parts.append(part)
        detail = f"{best['system']}, {interval}"
        facts.append(Fact(f"{best['wer']} %", f"word error rate, {name}", detail))
    sentences = parts[:_SENTENCES]
    if sentences and sum(each == "dev" for _, each in rates) > 1:
        sentences[-1] += "; dev chose the system"
    none = "No test set has been scored yet."
    sentence = "; ".join(sentences) + "." if sentences else none
    return Headline(" ".join([sentence, *failures(results, rates)]), facts)


def decision_section(results: Results) -> Section:
    """Report which system to ship, and what to try next."""
    section = Section("decision", "Which system to ship", "")
    decision = results.decision
    if decision is None:
        section.lead = "The system that dev is best with, and what it costs."
        section.blocks.append(missing("scores of dev and a test set", "score"))
        return section
    rows = list(_rows(results, decision))
    section.lead = _lead(results, decision, rows)
    bootstrap = results.options.score.bootstrap
    caption = (
        f"{decision.system} against each system on the same redrawn {decision.test} "
        f"utterances: the change of the word error rate, "
        f"below 0 where {decision.system} is better, with its "
        f"{100 * bootstrap.confidence:g} % interval, and p, two-sided and corrected "
        "for all comparisons of the report (Holm). Training time is that of the "
        "trainings and alignments that the system is built on; decoding includes a "
        "first pass that adapts to speakers."
    )
    words = {"system", "reading"}
    section.blocks.append(Table(rows, words, caption))
    section.blocks += too_few_draws(len(results.comparisons), bootstrap)
    section.blocks += _advice(results, decision)
    return section


def _lead(results: Results, decision: Decision, rows: list[Row]) -> str:
    """Return the answer in a sentence or two."""
    system, test = decision.system, decision.test
    rate = decision.rates[system, test]
    waiting = [one for one in decision.systems if (one, "dev") not in decision.rates]
    lead = f"{system}: dev chose it"
    if waiting:
        lead = f"{system}: the best on dev so far"
    if decision.ties:
        lead += f" (as good there: {', '.join(decision.ties)})"
    lead += f", and it gets {rate:.2f} % of {test}'s words wrong"
    verdict = results.verdict(system, test)
    if verdict is not None:
        lead += (
            f", {verdict.words} (change {verdict.change}, interval {verdict.interval}, "
            f"p {p_text(verdict.found.p_value)})"
        )
    lead += "." + _how_sure(results, decision)
    if waiting:
        lead += f" Dev has not been scored with {', '.join(waiting)}."
    unsure = [row["system"] for row in rows if could_be_chance(row.get("reading"))]
    worse = [
        row["system"]
        for row in rows
        if row.get("reading") == f"{row['system']} is better"
    ]
    if unsure:
        lead += (
            f" Its difference from {', '.join(map(str, unsure))} could be chance: the "
            "cheapest of them is as good a choice."
        )
    if worse:
        misled = "" if set(worse) <= {*waiting} else ": dev misled"
        lead += f" On {test} {', '.join(map(str, worse))} did better{misled}."
    return " ".join([lead, *failures(results, decision.rates)])


def _how_sure(results: Results, decision: Decision) -> str:
    """Name the systems that dev can't separate from the chosen one, and the best."""
    alike = results.alike_on_dev
    if not alike:
        return ""
    table, system = results.wer, decision.system
    assert table is not None
    words = int(table.loc[table["set"] == "dev", "words"].iloc[0])
    names = ", ".join(alike)
    doubt = f" Dev, of {words} words, can't separate it from {names}"
    if words < _ENOUGH_WORDS:
        doubt = (
            f" Dev is too small to choose: {words} words can't separate it from {names}"
        )
    best = least_errors(table, [system, *alike], ["dev", decision.test])
    if best is not None and best[0] != system:
        doubt += (
            f"; on dev and {decision.test} together {best[0]} errs least "
            f"({best[1]:.2f} %, {system} {best[2]:.2f} %)"
        )
    return f"{doubt}."


def _reading(chosen: str, other: str, found: Comparison) -> str:
    """Return which of two systems is better."""
    interval = found.low, found.high
    sides = f"{chosen} is better", f"{other} is better"
    return reading(found.difference, found.p_value, interval, sides)


def _rows(results: Results, decision: Decision) -> Iterator[Row]:
    """Yield a row a system: rates, the chosen one against it, costs."""
    costs = read_costs(results.folder)
    for system in decision.systems:
        found = results.comparison(system, decision.system, decision.test)
        rate = decision.rates[system, decision.test]
        on_dev = decision.rates.get((system, "dev"))
        row: dict[str, str | int] = {
            "system": system,
            "dev WER (%)": "" if on_dev is None else f"{on_dev:.2f}",
            f"{decision.test} WER (%)": f"{rate:.2f}",
        }
        if len(decision.systems) > 1:  # columns in one order, whichever row is first
            row |= dict.fromkeys(_COMPARED, "")
        if found is not None:
            row["change (absolute %)"] = f"{found.difference:+.2f}"
            row["interval (absolute %)"] = interval_text(found)
            if rate > 0:
                row["change (relative %)"] = f"{100 * found.difference / rate:+.1f}"
            row["p"] = p_text(found.p_value)
            row["reading"] = _reading(decision.system, system, found)
        elif system == decision.system:
            row["reading"] = "ship this"
        yield {**row, **_costs(results, costs, system, decision.test)}


def _costs(
    results: Results, costs: pd.DataFrame, system: str, test: str
) -> dict[str, str]:
    """Return what a system costs in use and in training, where it was measured."""
    shown: dict[str, str] = {}
    acoustic = results.recipe.system_of(system).name
    first = _first_pass(results, acoustic)
    is_adapted = first is not None or acoustic in results.recipe.adapted_systems
    shown["passes"] = "2" if is_adapted else "1"
    decodings = [system] if first is None else [first, system]
    summaries = [
        read_json(results / f"decode/{d}/{test}/decode.json", Decoding)
        for d in decodings
    ]
    factors = [None if one is None else one.real_time_factor for one in summaries]
    if None not in factors:
        shown["real-time factor a core"] = f"{sum(filter(None, factors)):.3f}"
    # Of the whole set, or of the largest part of it.
    job = costs["job"] + "."
    of_set = job.str.startswith(f"{acoustic}.{test}.")
    if first is not None:
        of_set |= job.str.startswith(f"{first}.{test}.")
    decodes = costs["rule"].str.startswith("decode_")
    memory = costs.loc[of_set & decodes, "peak_memory_mib"].max()
    if not math.isnan(memory):
        shown["decoding memory (MiB)"] = f"{memory:.0f}"
    makers = results.recipe.systems[acoustic].lineage
    seconds = sum(_making_seconds(costs, name) for name in makers)
    if seconds:
        shown["training (min)"] = f"{seconds / 60:.1f}"
    return shown


def _first_pass(results: Results, system: str) -> str | None:
    """Return the GMM system whose decoding adapts a network's features to speakers."""
    adapted = results.recipe.adapted_systems
    parts = results.recipe.systems[system].frames.parts
    return next((part.name for part in parts if part.name in adapted), None)


def _making_seconds(costs: pd.DataFrame, system: str) -> float:
    """Return the wall time of the jobs that made a system."""
    own = costs["job"].str.split(".").str[0] == system
    return float(
        costs.loc[own & costs["rule"].str.startswith(_MAKING), "wall_seconds"].sum()
    )


def _advice(results: Results, decision: Decision) -> Iterator[Block]:
    """List the findings that ask for something."""
    rows = [
        {"finding": found, "try": remedy}
        for found, remedy in findings(results, decision)
    ]
    yield Heading("What to try next")
    if rows:
        yield Table(rows, {"finding", "try"})
    else:
        yield Note("Nothing in the experiment's files asks for a change.")
