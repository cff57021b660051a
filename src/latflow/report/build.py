"""Stage `make_report`: one HTML file of an experiment's folder.

The file opens offline: drawings, sound, style and script are inside, nothing is
fetched. It is made of what exists so far; sections say what is missing and which target
makes it.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jinja2
import pandas as pd

from latflow.errors import UserError
from latflow.files import write_text
from latflow.report.cost_sections import capacity_section, speed_section
from latflow.report.data import (
    data_section,
    language_section,
    ledger_section,
    packages_section,
    provenance_section,
    training_hours,
)
from latflow.report.decision import decision_section, headline
from latflow.report.examples import examples_section
from latflow.report.inputs import Results
from latflow.report.page import Fact, Section
from latflow.report.page import markdown as as_markdown
from latflow.report.scores import (
    errors_section,
    lattices_section,
    rates_section,
    scales_section,
)
from latflow.report.sequence import sequence_section
from latflow.report.served import serving_section
from latflow.report.simulation import simulation_section
from latflow.report.slices import DECIMALS, slices_of, slices_section
from latflow.report.suspects import suspects_section
from latflow.report.training import (
    alignment_section,
    networks_section,
    training_section,
)
from latflow.scoring.results import write_table
from latflow.workflow.experiment import Experiment
from latflow.workflow.recipe import Recipe

log = logging.getLogger(__name__)

_OUTCOME = {"decision", "wer", "data"}  # sections that RESULTS.md has


def make_report(
    results_dir: Path,
    html: Path,
    markdown: Path,
    slices: Path | None = None,
    *,
    config: Experiment,
) -> None:
    """Write the results report.

    Args:
        results_dir: folder `results/<experiment>/`.
        html: file to write.
        markdown: file to write: the outcome, without figures and details.
        slices: file to write: table of the slices of the test sets; none if None.
        config: the recipe.

    Raises:
        UserError: there is no such folder.
    """
    if not results_dir.is_dir():
        raise UserError(
            "no such results folder", file=results_dir, remedy="run the experiment"
        )
    results = Results(results_dir, Recipe.resolve(config))
    date = now()
    sliced = slices_of(results)
    sections = _sections(results, sliced, date)
    summary = headline(results)
    facts = [*summary.facts, *_data_facts(results)]
    title = config.experiment
    write_page(html, title, summary.sentence, sections, facts=facts, date=date)
    outcome = [each for each in sections if each.key in _OUTCOME]
    write_text(markdown, as_markdown(title, summary.sentence, outcome))
    if slices is not None:
        write_table(slices, sliced, DECIMALS)
    log.info("report of %d sections, %.1f MB", len(sections), html.stat().st_size / 1e6)


def write_page(
    html: Path,
    title: str,
    summary: str,
    sections: Sequence[Section],
    *,
    facts: Sequence[Fact] = (),
    date: str,
) -> None:
    """Write sections as one HTML file that opens offline.

    Args:
        html: file to write.
        title: heading of the page.
        summary: the outcome in a sentence.
        sections: in their order.
        facts: numbers for the top.
        date: when it was written.
    """
    page = _environment().get_template("page.html.j2")
    text = page.render(
        experiment=title,
        summary=summary,
        facts=facts,
        sections=sections,
        date=date,
        style=_asset("page.css"),
        script=_asset("page.js"),
    )
    write_text(html, text)


def now() -> str:
    """Return the time for the foot of a page."""
    return datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _sections(results: Results, sliced: pd.DataFrame, date: str) -> list[Section]:
    """Return all sections in reading order."""
    has_systems = bool(results.recipe.gmms)  # else a flat start
    gaussians = (training_section, alignment_section) if has_systems else ()
    sections = [
        decision_section(results),
        rates_section(results),
        slices_section(results, sliced),
        scales_section(results),
        lattices_section(results),
        examples_section(results),
        errors_section(results),
        *(section(results) for section in gaussians),
        networks_section(results),
        sequence_section(results),
        data_section(results),
        simulation_section(results),
        suspects_section(results),
        language_section(results),
        ledger_section(results),
        speed_section(results),
        serving_section(results),
        packages_section(results),
        capacity_section(results),
        provenance_section(results, date=date),
    ]
    return [section for section in sections if section is not None]


def _data_facts(results: Results) -> list[Fact]:
    """Return numbers on data and systems for the top of the page."""
    hours = training_hours(results)
    names = list(results.recipe.systems)
    systems = Fact(str(len(names)), "systems", ", ".join(names))
    if hours is None:
        return [systems]
    length = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
    return [Fact(length, "training speech"), systems]


def _environment() -> jinja2.Environment:
    """Return the template engine; everything put into the page is escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("latflow.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _asset(name: str) -> str:
    """Return the text of a file of this package."""
    return resources.files("latflow.report").joinpath(name).read_text(encoding="utf-8")
