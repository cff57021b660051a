"""What servers make of the systems: which can be served, and their word error rates."""

from __future__ import annotations

from collections.abc import Iterator

from latflow.errors import UserError
from latflow.report.inputs import Results, read_json
from latflow.report.page import Heading, Note, Row, Section, Table
from latflow.report.records import ServedErrors, WordErrorRate
from latflow.workflow.packages import PackagePlan

_RATES = (
    "Each utterance is recognized as a server recognizes a stream, and latflow "
    "transcribe a file: speech is looked for, and each segment of it begins again. "
    "The rates above are of whole utterances; where these hold several sentences with "
    "pauses between them, they differ."
)


def serving_section(results: Results) -> Section:
    """Report which systems can be served, and how well packages recognize."""
    lead = (
        "Systems that are to recognize while somebody speaks must not need what is "
        "spoken later, as normalization by the mean of a speaker does. Those that do "
        "can be packaged with `package.offline`, for files that are there as a whole."
    )
    section = Section("serving", "Serving", lead)
    systems = results.recipe.systems
    rows = [{"system": s, "can be served": _how(results, s)} for s in systems]
    section.blocks.append(Table(rows, {"system", "can be served"}))
    if rates := list(_rate_rows(results)):
        section.blocks += [Heading("As served"), Note(_RATES)]
        section.blocks.append(Table(rates, {"system", "set"}))
    return section


def _how(results: Results, system: str) -> str:
    """Report how a system can be served, or why not."""
    try:
        PackagePlan(results.recipe, system).check_recognizes()
        PackagePlan(results.recipe, system, offline=True).check()
    except UserError as error:
        return f"no: {error.what}"
    try:
        PackagePlan(results.recipe, system, offline=False).check()
    except UserError as error:
        return f"whole files only: {error.what}"
    return "yes"


def _rate_rows(results: Results) -> Iterator[Row]:
    """Yield a row a package and set."""
    for system in results.recipe.served_systems:
        for name in results.recipe.served_sets:
            found = read_json(
                results / f"served/{system}/{name}/wer.json", ServedErrors
            )
            whole = read_json(
                results.score_folder(system, name) / "wer.json", WordErrorRate
            )
            if found is not None and found.wer is not None:
                bounds = found.confidence_interval
                yield {
                    "system": system,
                    "set": name,
                    "WER (%)": f"{found.wer:.2f}",
                    "interval": f"{bounds.low:.2f} – {bounds.high:.2f}",
                    "inserted": str(found.insertions),
                    "deleted": str(found.deletions),
                    "substituted": str(found.substitutions),
                    "whole utterances, WER (%)": _rate(whole),
                }


def _rate(found: WordErrorRate | None) -> str:
    """Return a rate as the table shows it; empty without one."""
    return "" if found is None or found.wer is None else f"{found.wer:.2f}"
