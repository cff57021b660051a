"""The recipe that an experiment begins with: a template, filled by what data holds."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

from latflow.corpus.options import CorpusOptions
from latflow.corpus.transcript_search import Pairs
from latflow.errors import UserError
from latflow.features.options import FeatureOptions
from latflow.files import write_json, write_text
from latflow.lang.letters import letter_lexicon
from latflow.lang.options import LangOptions
from latflow.options import read_options
from latflow.workflow.doctor import survey_sources
from latflow.workflow.findings import Finding, some
from latflow.workflow.language import check_lexicon
from latflow.workflow.layout import Layout, Source, find_layout
from latflow.workflow.settings import workflow_folder
from latflow.workflow.sizes import NetworkSize, gmm_systems, network_size
from latflow.workflow.survey import OOV_WARNING_SHARE, Survey

MAX_SKIPPED = 0.02
_HIGHEST_RATE = 16000  # Hz; above 8 kHz there is little to distinguish words
_FEW = 0.02  # of the utterances: those at lower rates are brought to that of the others
_FEW_SPEAKERS = 4  # with fewer, none can be kept out of training
_LEXICON, _SCHEMA = "lexicon.txt", "recipe.schema.json"
# Of a recipe without data: sizes for five hours of speech and any words.
_HOURS, _SIZE = 5.0, NetworkSize(2000, 384, 80, 7, 12, 16, 100)


@dataclass
class Found:
    """What is known of the data of a new experiment.

    Attributes:
        data: the folder, or table.
        sets: source of each set, as the recipe has it.
        lexicon: its path, as the recipe has it.
        facts: lines for people.
        findings: what is wrong.
        hours: of the training set.
        phones: of its words, each spelled once.
        generates: whether words that the lexicon lacks get pronunciations.
    """

    data: str
    sets: dict[str, Source]
    lexicon: str
    facts: list[str]
    findings: list[Finding]
    hours: float
    phones: int
    generates: bool


def write_start(
    folder: str | Path,
    data: str | Path | None = None,
    lexicon: str | Path | None = None,
    *,
    serve: bool = False,
) -> tuple[list[Path], Found | None]:
    """Write a recipe to begin with, its networks, and the recipes' schema.

    Args:
        folder: for the files.
        data: folder or table of audio with transcripts that the recipe is to be of.
        lexicon: its lexicon; without one, words are spelled by their letters.
        serve: whether the model is to recognize while one speaks.

    Returns:
        (the files; what is known of the data, if there is some).

    Raises:
        UserError: one of the files is there already, the data has no training set, or
            the lexicon cannot be read.
    """
    from latflow.workflow.experiment import json_schema

    folder = Path(folder)
    if data is None and lexicon is not None:
        raise UserError("--lexicon without --audio", remedy="name the recordings, too")
    layout = Layout() if data is None else find_layout(data)
    tables = {f"{name}.tsv": pairs for name, pairs in layout.pairs.items()}
    templates = _templates(is_found=data is not None)
    is_spelled = data is not None and lexicon is None
    made = [*tables, *([_LEXICON] if is_spelled else [])]
    names = [*made, *templates, _SCHEMA]
    for path in (folder / name for name in names):
        if path.exists():
            raise UserError("is there already", file=path, remedy="name a new folder")
    found = None
    try:
        for name, pairs in tables.items():
            write_text(folder / name, _table(pairs))
        if data is not None:
            found = _Survey(folder, layout, lexicon).found(str(os.path.abspath(data)))
    except UserError:  # the next attempt begins again
        for name in made:
            (folder / name).unlink(missing_ok=True)
        raise
    values = _values(folder, found, is_served=serve or data is None)
    for name, template in templates.items():
        write_text(folder / name, template.render(values))
    write_json(folder / _SCHEMA, json_schema())
    return [folder / name for name in names], found


def _templates(*, is_found: bool) -> dict[str, jinja2.Template]:
    """Return the files to be written, by name; some are for a recipe of no data."""
    source = workflow_folder() / "config" / "start"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(source),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML, not HTML
    )
    return {
        path.name.removesuffix(".j2"): environment.get_template(path.name)
        for path in sorted(source.glob("*.yaml*"))
        if path.suffix == ".j2" or not is_found
    }


def _values(folder: Path, found: Found | None, *, is_served: bool) -> dict[str, Any]:
    """Return what the templates are filled with."""
    name = re.sub(r"[^a-z0-9_-]+", "_", Path(os.path.abspath(folder)).name.lower())
    values: dict[str, Any] = {
        "experiment": name.strip("-_") or "mine",
        "found": found,
        "serve": is_served,
        "max_skipped": MAX_SKIPPED,
        "hours": _HOURS,
        "size": _SIZE,
        "generates": False,
    }
    systems = gmm_systems(_HOURS, "tri3")
    if found is not None:
        sets = {key: _flow(source) for key, source in found.sets.items()}
        values |= {
            "hours": found.hours,
            "size": network_size(found.hours, found.phones),
            "lexicon": _flow(found.lexicon),
            "train": sets.pop("train"),
            "dev": sets.pop("dev"),
            "tests": sets,
        }
        systems = gmm_systems(found.hours, "tri3", found.phones)
    return {**values, "gmm": {key: _flow(system) for key, system in systems.items()}}


def _flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=10**9, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _table(pairs: Pairs) -> str:
    """Return a table of utterances: paths, transcripts, speakers.

    Raises:
        UserError: a path does not go into a table.
    """
    rows = [("path", "text", "speaker")]
    rows += [(str(pair.audio), pair.text, pair.speaker) for pair in pairs.pairs]
    for path, *_ in rows:
        if {*path} & {*"\t\n\r"}:
            raise UserError(
                "the name has a tab or an end of line", file=path, remedy="rename it"
            )
    return "".join("\t".join(row) + "\n" for row in rows)


class _Survey:
    """Looks the data of a new experiment over.

    Args:
        folder: of the experiment; holds the tables that were made of the data.
        layout: of the data.
        lexicon: its lexicon, if there is one.
    """

    def __init__(
        self, folder: Path, layout: Layout, lexicon: str | Path | None
    ) -> None:
        self._layout, self._folder = layout, folder
        self._sets: dict[str, Source] = {
            name: {"type": "table", "path": f"{name}.tsv"}
            if name in layout.pairs
            else source
            for name, source in layout.sets.items()
        }
        self._facts = [_summary(name, pairs) for name, pairs in layout.pairs.items()]
        if layout.unused:
            self._facts.append(f"not used: {some(layout.unused)}")
        self._lexicon = None if lexicon is None else Path(os.path.abspath(lexicon))

    def found(self, data: str) -> Found:
        """Return what is known, once a lexicon is there."""
        is_spelled = self._lexicon is None
        if is_spelled:
            self._spell(self._look()[1][0])
        findings, surveys = self._look()
        counts = [_counts(survey) for survey in surveys if survey.num_utterances]
        if rate := _rate_for(surveys):
            for name, source in self._sets.items():
                self._sets[name] = _resampled(source, rate)
            self._facts.append(f"recordings are brought to {rate} Hz")
            findings, surveys = self._look()
        train = surveys[0]
        sets = self._with_dev(train)
        if "dev" not in self._sets:
            counts.append(f"dev: a tenth of train, by {sets['dev']['by']}")
        if not train.seconds:
            raise UserError(
                "no utterance of the training set can be read",
                file=data,
                remedy="; ".join(map(str, findings[:2])) or "check the path",
            )
        return Found(
            data,
            sets,
            _LEXICON if is_spelled else str(self._lexicon),
            [*counts, *self._facts],
            findings,
            train.seconds / 3600,
            self._phones(train),
            not is_spelled and train.oov.total() > OOV_WARNING_SHARE * train.num_words,
        )

    def _look(self) -> tuple[list[Finding], list[Survey]]:
        """Survey all sets with what lexicon there is."""
        sets = {name: self._absolute(source) for name, source in self._sets.items()}
        train, dev = sets.pop("train"), sets.pop("dev", {"type": "hold_out"})
        corpus = read_options(
            CorpusOptions, {"train": train, "dev": dev, "test": sets}, "corpus"
        )
        features = FeatureOptions()
        return survey_sources(
            corpus, self._lexicon, LangOptions(), features, MAX_SKIPPED
        )

    def _absolute(self, source: Source) -> Source:
        """Return a source whose table is found from here."""
        path = source.get("path")
        return source if path is None else {**source, "path": str(self._folder / path)}

    def _spell(self, train: Survey) -> None:
        """Write a lexicon of letters for the words of the training set."""
        lines, others = letter_lexicon(train.words)
        self._lexicon = Path(os.path.abspath(self._folder / _LEXICON))
        write_text(self._lexicon, "".join(f"{line}\n" for line in lines))
        self._facts.append(f"{_LEXICON}: {len(lines)} words spelled by their letters")
        if others:
            self._facts.append(
                f"without a spelling, to be added to it: {len(others)} ({some(others)})"
            )

    def _with_dev(self, train: Survey) -> dict[str, Source]:
        """Return the sets, dev held out of train where there is none."""
        if "dev" in self._sets:
            return self._sets
        is_many = len(train.speakers) >= _FEW_SPEAKERS
        by = "speaker" if is_many else "utterance"
        return {**self._sets, "dev": {"type": "hold_out", "by": by, "fraction": 0.1}}

    def _phones(self, train: Survey) -> int:
        """Return the phones of the words of the training set, each spelled once."""
        assert self._lexicon is not None
        lexicon = check_lexicon(self._lexicon, LangOptions())
        lengths = {entry.word: len(entry.phones) for entry in lexicon.entries}
        return sum(lengths.get(word, 0) for word in train.words)


def _summary(name: str, pairs: Pairs) -> str:
    """Return a line that sums up how a table was made."""
    kinds = next(iter(pairs.sources))
    if len(pairs.sources) > 1:
        kinds += f", and likewise in {len(pairs.sources) - 1} further files"
    left = {
        "audio files without a transcript": pairs.without,
        "recordings by further microphones": pairs.microphones,
        "second transcripts": pairs.several,
    }
    out = ", ".join(f"{count} {what}" for what, count in left.items() if count)
    return (
        f"{name}.tsv: {len(pairs.pairs)} audio files with transcripts, from {kinds}"
        + (f"; left out: {out}" if out else "")
    )


def _counts(survey: Survey) -> str:
    """Return a line on what a set holds."""
    speakers = len(survey.speakers)
    who = (
        f"{speakers} speaker{'s' * (speakers != 1)}" if speakers else "speakers unknown"
    )
    rates = ", ".join(f"{rate} Hz" for rate in sorted(survey.sample_rates))
    return (
        f"{survey.split}: {survey.num_utterances} utterances, "
        f"{survey.hours_text()}, {who}, {rates or 'rate unknown'}"
    )


def _rate_for(surveys: list[Survey]) -> int | None:
    """Return the rate that recordings are to be brought to; None to leave theirs."""
    rates = sum((survey.sample_rates for survey in surveys), Counter[int]())
    below = 0
    for rate in sorted(rates):
        below += rates[rate]
        if below > _FEW * rates.total():
            wanted = min(rate, _HIGHEST_RATE)
            return wanted if set(rates) != {wanted} else None
    return None


def _resampled(source: Source, rate: int) -> Source:
    """Return a source whose recordings are brought to a rate."""
    if "sources" in source:
        parts = {k: _resampled(v, rate) for k, v in source["sources"].items()}
        return {**source, "sources": parts}
    return {**source, "sample_rate": rate}
