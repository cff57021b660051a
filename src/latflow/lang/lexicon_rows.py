"""Rows of a lexicon; tables, markup and the like are refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from latflow.errors import UserError

OUTPUT = re.compile(r"\[.*\]")  # symbol of HTK's dictionaries
_NUMBER = re.compile(r"[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?")
_TITLES = (
    frozenset({"word", "words", "ortho", "orthography", "entry"}),
    frozenset(
        {"phon", "phone", "phones", "phonemes", "pronunciation", "pronunciations"}
    )
    | {"ipa", "transcription", "probability", "frequency"},
)
MANY = 20  # entries that show what is between or behind words


@dataclass
class Row:
    """A line of a lexicon.

    Attributes:
        number: of the line, from 1.
        word: the word.
        fields: its phones; with the numbers before them until those are split off.
        columns: the numbers, as they are written.
        head: the fields between the word and the first tab, if there is one.
        parts: what tabs part behind that; empty in a line without tabs.
    """

    number: int
    word: str
    fields: list[str]
    columns: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)


def fault(file: Path, row: Row, what: str, remedy: str) -> UserError:
    """Return an error about a line."""
    return UserError(f"line {row.number}: {what}", file=file, remedy=remedy)


def is_number(text: str) -> bool:
    """Return whether a field is a number, with any sign, point, comma or exponent."""
    return _NUMBER.fullmatch(text) is not None


def is_column(text: str) -> bool:
    """Return whether a field may stand between a word and its phones."""
    return is_number(text) or OUTPUT.fullmatch(text) is not None


def refuse_other_forms(file: Path, rows: Sequence[Row]) -> None:
    """Refuse tables, markup, and pronunciations in one piece.

    Raises:
        UserError: names the form.
    """
    if not rows:
        return
    first = rows[0]
    form = _form_of_first_line(first) or _form_of_table(rows)
    if form:
        raise fault(
            file,
            first,
            f"this is {form}, not a lexicon",
            "write one pronunciation a line: WORD PHONE PHONE ...",
        )
    for row in rows:
        text = " ".join(row.fields)
        if len(text) > 2 and text.startswith("/") and text.rstrip(",").endswith("/"):
            raise fault(
                file,
                row,
                f"word {row.word}: {text[:40]} is a transcription between slashes, "
                "whose phones are not separated",
                "write the phones with blanks between them, without slashes",
            )


def refuse_title(file: Path, rows: Sequence[Row]) -> None:
    """Refuse a list of words whose first may be the title of a table's one column."""
    first = rows[0]
    if len(rows) > 1 and first.word.casefold() in _TITLES[0] and not first.fields:
        raise fault(
            file,
            first,
            f"{first.word} may be the title of a column, or a word",
            "remove it, or put the word on a later line",
        )


def refuse_blanks(file: Path, rows: Sequence[Row]) -> None:
    """Refuse words with a blank, where a tab follows them."""
    for row in rows:
        if row.parts and not all(map(is_column, row.head)):
            raise fault(
                file,
                row,
                f"a blank is in the word {' '.join((row.word, *row.head))!r} "
                "before the tab",
                "join its parts, e.g. with _ or a hyphen, as in the transcripts; "
                "or write blanks instead of tabs",
            )


def refuse_other_columns(file: Path, rows: Sequence[Row]) -> None:
    """Refuse what stands between tabs before the phones, and is none.

    That is looked for where most lines have all phones behind the last tab: parts
    of speech, or the second half of a word whose blank was made a tab.
    """
    tabbed = [row for row in rows if row.parts]
    spaced = [row for row in tabbed if " " in row.parts[-1].strip()]
    if 2 * len(spaced) <= len(tabbed):
        return
    phones = {phone for row in tabbed for phone in row.parts[-1].split()}
    for row in tabbed:
        for part in row.parts[:-1]:
            if any(not is_column(f) and f not in phones for f in part.split()):
                raise fault(
                    file,
                    row,
                    f"word {row.word}: {part!r} stands between the word and its "
                    "phones, parted by tabs, but is not made of phones",
                    "remove this column, or join the parts of the word",
                )


def refuse_unseparated(file: Path, rows: Sequence[Row]) -> None:
    """Refuse a lexicon in which nearly every word has a phone of its own."""
    alone = [row for row in rows if len(row.fields) == 1]
    # Words that are phones, `AA AA`, are what recognizers of phones have.
    alone = [r for r in alone if r.fields[0].casefold() != r.word.casefold()]
    phones = {row.fields[0] for row in alone}
    if len(rows) >= MANY and len(phones) > len(rows) / 2:
        raise fault(
            file,
            alone[0],
            f"word {alone[0].word}: {alone[0].fields[0]} seems to be a whole "
            f"pronunciation: {len(phones)} of {len(rows)} lines have one phone "
            "that no other has",
            "write the phones with blanks between them",
        )


def _form_of_first_line(row: Row) -> str:
    """Return what else a file is by its first line; empty if nothing is known."""
    start = row.word.casefold()
    if start.startswith(("<?xml", "<lexicon", "<!doctype")):
        return "XML"
    if start in ("{", "[", "[{") or start.startswith('{"'):
        return "JSON"
    if start == "%" and len(row.fields) == 1:
        return "a vocabulary of a Julius grammar (.voca)"
    if start.startswith('("') or start == "mncl":
        return "a lexicon of Festival"
    if start in _TITLES[0] and row.fields and row.fields[0].casefold() in _TITLES[1]:
        return "a table with a line of titles"
    return ""


def _form_of_table(rows: Sequence[Row]) -> str:
    """Return the name of tables with commas or semicolons, if rows are of one."""
    for mark, name in ((",", "commas"), (";", "semicolons")):
        if all(mark in row.word[1:] for row in rows):
            return f"a table with {name} between the columns (CSV)"
    return "a table with tabs between the columns" if _has_columns(rows) else ""


def _has_columns(rows: Sequence[Row]) -> bool:
    """Return whether most of many lines, all with as many tabs, have a field alone.

    Pronunciations that are parted by tabs differ in length, and have the same phones.
    """
    width = len(rows[0].parts)
    if len(rows) < MANY or width < 2 or any(len(r.parts) != width for r in rows):
        return False
    fields = [{f for f in row.fields if not is_number(f)} for row in rows]
    count = Counter(field for found in fields for field in found)
    alone = sum(any(count[field] == 1 for field in found) for found in fields)
    return 2 * alone > len(rows)
