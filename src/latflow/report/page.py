"""The parts of the report's page, free of HTML: sections, tables, figures, notes.

Public: `Section`, `Table`, `Column`, `text_column`, `Words`, `Figure`, `Note`,
`Heading`, `Example`, `Details`, `Fact`, `missing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class Column:
    """Heading of a table's column.

    Attributes:
        title: what it holds, with the unit.
        is_number: whether cells are numbers (set to the right, sorted as numbers).
    """

    title: str
    is_number: bool = True


def text_column(title: str) -> Column:
    """Heading of a column of words."""
    return Column(title, is_number=False)


@dataclass(frozen=True)
class Words:
    """A cell with one side of an aligned utterance.

    Attributes:
        words: (word, kind) in order; the kind is `ok`, `sub`, `del`, `ins` or `gap`.
    """

    words: tuple[tuple[str, str], ...]


Cell = str | Words


@dataclass(frozen=True)
class Table:
    """A table; readers sort it by clicking a heading."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    kind: ClassVar[str] = "table"


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
        utterance: its id.
        speaker: who speaks.
        summary: a few words about the errors.
        audio: data address of the sound.
        svg: spectrogram with phones and words.
        left: where the time axis starts, per cent of the drawing's width.
        width: length of the time axis, per cent of the drawing's width.
        reference: what was said.
        hypothesis: what was recognised, aligned with the reference.
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
    kind: ClassVar[str] = "example"


Block = Table | Figure | Note | Heading | Details | Example


@dataclass
class Section:
    """A chapter of the report.

    Attributes:
        key: its anchor.
        title: its heading.
        lead: one or two sentences for a reader who did not run the experiment.
        blocks: what it shows.
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
    """Say that something has not been computed yet, and what computes it."""
    return Note(f"No {what} yet: run the target {target}.", is_missing=True)
