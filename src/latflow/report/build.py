"""The stage `make_report`: an experiment's folder becomes one HTML file.

The file opens offline: drawings, sound, style and script are inside, nothing is
fetched. It is made of what exists so far; sections say what is missing and which target
makes it.

Public: `make_report`.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.report.data import (
    data_section,
    language_section,
    ledger_section,
    training_hours,
)
from latflow.report.examples import examples_section
from latflow.report.inputs import Results
from latflow.report.lattices import lattices_section
from latflow.report.networks import networks_section
from latflow.report.page import Fact, Section
from latflow.report.running import provenance_section, speed_section
from latflow.report.scores import (
    errors_section,
    headline,
    rates_section,
    scales_section,
)
from latflow.report.sequence import sequence_section
from latflow.report.training import alignment_section, training_section

log = logging.getLogger(__name__)


def make_report(
    results_dir: str | Path, out_html: str | Path, *, config: Mapping[str, Any]
) -> None:
    """Write the results report.

    Args:
        results_dir: folder `results/<experiment>/`.
        out_html: file to write.
        config: complete configuration of the experiment, defaults filled in.

    Raises:
        UserError: there is no such folder, or the configuration names a system or set
            to show that the experiment does not have.
    """
    results = Results(Path(results_dir), config)
    _check(results)
    date = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    sections = _sections(results, date)
    summary = headline(results)
    page = _environment().get_template("page.html.j2")
    text = page.render(
        experiment=config["experiment"],
        headline=summary,
        facts=[*summary.facts, *_data_facts(results)],
        sections=sections,
        date=date,
        style=_asset("page.css"),
        script=_asset("page.js"),
    )
    with atomic_output(out_html) as temporary:
        temporary.write_text(text, encoding="utf-8")
    log.info("report of %d sections, %.1f MB", len(sections), len(text) / 1e6)


def _sections(results: Results, date: str) -> list[Section]:
    """All sections in reading order."""
    sections = [
        rates_section(results),
        scales_section(results),
        lattices_section(results),
        examples_section(results),
        errors_section(results),
        training_section(results),
        alignment_section(results),
        networks_section(results),
        sequence_section(results),
        data_section(results),
        language_section(results),
        ledger_section(results),
        speed_section(results),
        provenance_section(results, date=date),
    ]
    return [section for section in sections if section is not None]


def _data_facts(results: Results) -> list[Fact]:
    """Numbers on data and systems for the top of the page."""
    hours = training_hours(results)
    systems = Fact(str(len(results.systems)), "systems", ", ".join(results.systems))
    if hours is None:
        return [systems]
    length = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
    return [Fact(length, "training speech"), systems]


def _check(results: Results) -> None:
    """Refuse a folder that is not there, and systems and sets that do not exist."""
    if not results.folder.is_dir():
        raise UserError(
            "no such results folder", file=results.folder, remedy="run the experiment"
        )
    choices = {
        "example_system": (results.shown_system, results.systems),
        "example_set": (results.shown_set, results.evaluation_sets),
    }
    for key, (name, known) in choices.items():
        if name not in known:
            raise UserError(
                f"configuration report.{key}: {name!r} is not part of the experiment",
                remedy=f"choose one of: {', '.join(known)}",
            )


def _environment() -> jinja2.Environment:
    """The template engine; everything put into the page is escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("latflow.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _asset(name: str) -> str:
    """Text of a file of this package."""
    return resources.files("latflow.report").joinpath(name).read_text(encoding="utf-8")
