"""The parts of the report's page, free of HTML: sections, tables, figures, notes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd


@dataclass(frozen=True)
class Words:
    """A cell with one side of an aligned utterance.

    Attributes:
        words: (word, kind) in order; the kind is `ok`, `sub`, `del`, `ins` or `gap`.
    """

    words: Sequence[tuple[str, str]]


Row = Mapping[str, str | int | Words]
#: Kinds of errors as `Words` has them, and none; what a reader calls them.
ERROR_KINDS = {
    "sub": "substitutions",
    "del": "deletions",
    "ins": "insertions",
    "ok": "no error",
}


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table by the titles of their columns."""
    return [
        {str(title): cell for title, cell in row.items()}
        for row in table.to_dict("records")
    ]


@dataclass(frozen=True)
class Table:
    """A table; readers sort it by clicking a heading.

    Attributes:
        rows: cells by the titles of their columns; an absent one is empty.
        text: titles of columns of words. The others hold numbers (set to the right,
            sorted as numbers).
        caption: a sentence about it.
    """

    rows: Sequence[Row]
    text: Collection[str] = ()
    caption: str = ""
    kind: ClassVar[str] = "table"

    @property
    def titles(self) -> list[str]:
        """Titles of the columns, in the order in which rows name them first."""
        return list(dict.fromkeys(title for row in self.rows for title in row))


@dataclass(frozen=True)
class Figure:
    """A drawing, as inline SVG."""

    svg: str
    caption: str
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Note:
    """A paragraph; `is_missing` marks one that says what is not there yet."""

    text: str
    is_missing: bool = False
    kind: ClassVar[str] = "note"


@dataclass(frozen=True)
class Heading:
    """Title of a part of a section."""

    text: str
    kind: ClassVar[str] = "heading"


@dataclass(frozen=True)
class Details:
    """Preformatted text that is folded away until clicked."""

    title: str
    text: str
    kind: ClassVar[str] = "details"


@dataclass(frozen=True)
class Example:
    """One utterance to hear and see.

    Attributes:
        utterance: its id; where it is shown as several sets have it, the set.
        speaker: who speaks.
        summary: a few words about the errors.
        audio: data address of the sound.
        svg: spectrogram with phones and words.
        left: start of the time axis, per cent of the drawing's width.
        width: length of the time axis, per cent of the drawing's width.
        reference: words of the reference.
        hypothesis: what was recognized, aligned with the reference.
        errors: kinds of its errors, of `ERROR_KINDS`.
    """

    utterance: str
    speaker: str
    summary: str
    audio: str
    svg: str
    left: float
    width: float
    reference: Words
    hypothesis: Words
    errors: Collection[str] = ()
    kind: ClassVar[str] = "example"


@dataclass(frozen=True)
class Beside:
    """Examples side by side."""

    examples: Sequence[Example]
    kind: ClassVar[str] = "beside"


@dataclass(frozen=True)
class ErrorFilter:
    """Buttons that leave the section's examples with a kind of error alone.

    Attributes:
        counts: examples that have each kind, of `ERROR_KINDS`.
        total: examples of the section.
    """

    counts: Mapping[str, int]
    total: int
    names: ClassVar[Mapping[str, str]] = ERROR_KINDS
    kind: ClassVar[str] = "filter"


Block = Table | Figure | Note | Heading | Details | Example | Beside | ErrorFilter


@dataclass
class Section:
    """A chapter of the report.

    Attributes:
        key: its anchor.
        title: its heading.
        lead: one or two sentences for a reader who did not run the experiment.
        blocks: its contents.
    """

    key: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Fact:
    """A number worth a glance at the top of the page."""

    value: str
    label: str
    detail: str = ""


def missing(what: str, target: str) -> Note:
    """Note that something has not been computed yet, and what computes it."""
    return Note(f"No {what} yet: run the target {target}.", is_missing=True)


def markdown(title: str, summary: str, sections: Sequence[Section]) -> str:
    """Return sections with their tables and notes; figures stay in the report.

    Args:
        title: heading of the document.
        summary: the outcome in a sentence.
        sections: in their order.
    """
    parts = [f"# {title}", summary]
    for section in sections:
        parts += [f"## {section.title}", section.lead]
        parts += [text for block in section.blocks for text in _texts(block)]
    return "\n\n".join(parts) + "\n"


def _texts(block: Block) -> Iterator[str]:
    """Yield the paragraphs of a block."""
    if isinstance(block, Heading):
        yield f"### {block.text}"
    elif isinstance(block, Note):
        yield block.text
    elif isinstance(block, Table):
        yield "\n".join(_lines(block))
        if block.caption:
            yield block.caption


def _lines(table: Table) -> Iterator[str]:
    """Yield a table's lines: numbers to the right."""
    titles = table.titles
    yield _line(titles)
    yield _line([":--" if title in table.text else "--:" for title in titles])
    for row in table.rows:
        yield _line([str(row.get(title, "")) for title in titles])


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
