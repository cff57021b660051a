"""Lines of lexica in the forms that people have them, and what is no lexicon.

`read_rows` reads words, numbers and phones of

    ONE W AH N                        Kaldi's lexicon.txt, CMU Sphinx
    ONE 0.7 W AH N                    lexiconp.txt, Montreal Forced Aligner
    ONE 0.7 0.2 1.1 0.9 W AH N        lexiconp_silprob.txt, Montreal Forced Aligner
    ONE(2) HH W AH N # a comment      CMU dictionary
    ONE [one] 0.7 W AH N              HTK, Julius, VoxForge

with blanks or tabs between fields. Where a line has a tab, the word is what stands
before the first.

Which numbers are columns, and which phones: a number with a decimal point or an
exponent is never a phone; an integer of up to three digits may be one (X-SAMPA writes
vowels `1`, `2`, `6`, `9`; tone contours are `55`, `214`). The probability of silence
lies between 0 and 1, so that four columns have a decimal point behind the first, and
lines with and without columns may be mixed. The integers `0` and `1` behind a word are
probabilities if every line has a number there, or if others have decimals there and
they are no phones elsewhere in the file.

What is changed is counted in one line of the log; what can't be read is refused with
its line.

Source: HTK Book 3.5, section 12.7 (dictionaries); CMU dictionary 0.7b (its README);
Kaldi `utils/validate_dict_dir.pl`; Montreal Forced Aligner, "Pronunciation dictionary
format".
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from latflow.lang.lexicon_rows import (
    MANY,
    OUTPUT,
    Row,
    fault,
    is_number,
    refuse_blanks,
    refuse_other_columns,
    refuse_other_forms,
    refuse_unseparated,
)
from latflow.text_files import read_lines

log = logging.getLogger(__name__)

COMMENT = ";;"
_INTEGER = re.compile(r"[0-9]{1,3}")
_JULIUS_SCORE = re.compile(r"@[-+]?[0-9]+\.[0-9]*")
_VARIANT = re.compile(r"(.+)\(([0-9]+)\)")
_HASHES = re.compile(r"#|##.*")
_ESCAPED = re.compile(r"\\(['\"\\])")
# Characters that nobody sees: soft hyphen, zero-width space, marks of direction, word
# joiner, byte order mark. Not the joiners U+200C, U+200D: they change how words read.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
# Of syllables, stress and liaison, in IPA, X-SAMPA and dictionaries of words.
_MARKS = frozenset('.-\u02c8\u02cc\u203f"%')
_MARK_OR_PHONE = "="  # a phone in the alphabet DISC


def read_rows(file: Path, *, has_probabilities: bool | None) -> list[Row]:
    """Read the lines of a lexicon that are not blank or comments.

    Args:
        file: the lexicon; read through gzip if its name ends in `.gz`.
        has_probabilities: whether a number follows each word; None finds out.

    Returns:
        Rows with words (composed, NFC; without invisible characters) and phones; `[]`
        for a file without a line.

    Raises:
        UserError: the file is missing, not a text, in another form, or has a line that
            can be read in two ways.
    """
    reader = _Reader(file)
    rows = reader.lines()
    refuse_other_forms(file, rows)
    rows = reader.without_comments(rows)
    refuse_blanks(file, rows)
    refuse_other_columns(file, rows)
    reader.take_outputs(rows)
    reader.split_columns(rows, has_probabilities=has_probabilities)
    for row in rows:
        reader.clean_word(row)
        reader.check_phones(row)
    reader.leave_out_marks(rows)
    reader.fold_variants(rows)
    reader.unify_phones(rows)
    refuse_unseparated(file, rows)
    reader.report()
    return rows


class _Reader:
    """The steps of `read_rows`, and counts of what they changed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.changed: Counter[str] = Counter()

    def report(self) -> None:
        """Log what was changed, in one line."""
        if self.changed:
            changes = ", ".join(f"{what}: {n}" for what, n in self.changed.items())
            log.info("%s: %s", self.file, changes)

    # -- lines ----------------------------------------------------------------------

    def lines(self) -> list[Row]:
        """Return the lines that are neither empty nor comments after `;;`."""
        rows = []
        for number, line in read_lines(self.file):
            if line.startswith(COMMENT):
                self.changed["comment lines passed over"] += 1
            elif line.strip():
                rows.append(self._row(number, line))
        return rows

    def _row(self, number: int, line: str) -> Row:
        """Part a line into the word and what follows it."""
        head, tab, rest = line.strip().partition("\t")
        word, *before = head.split()
        parts = rest.split("\t") if tab else []
        return Row(number, word, [*before, *rest.split()], head=before, parts=parts)

    # -- comments -------------------------------------------------------------------

    def without_comments(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows without comments after `#`.

        Raises:
            UserError: what follows a `#` are phones of this lexicon, or nothing: it may
                be a phone or a word itself (as in the alphabet DISC).
        """
        if not any(_has_comment(row) for row in rows):
            return list(rows)
        phones = {
            phone
            for row in rows
            if not _HASHES.fullmatch(row.word)
            for phone in row.fields[: _comment_at(row)]
        }
        kept = []
        for row in rows:
            if not _has_comment(row):
                kept.append(row)
                continue
            is_line = bool(_HASHES.fullmatch(row.word))
            place = 0 if is_line else _comment_at(row) + 1
            is_empty = row.word == "#" and not row.fields
            if (
                set(row.fields[place:]) <= phones
                and not is_empty
                and row.word[:2] != "##"
            ):
                raise fault(
                    self.file,
                    row,
                    f"word {row.word}: # may begin a comment, or be a "
                    f"{'word' if is_line else 'phone'}",
                    "remove it, or rename it",
                )
            kind = "comment lines passed over" if is_line else "comments cut off"
            self.changed[kind] += 1
            if not is_line:
                row.fields = row.fields[: place - 1]
                kept.append(row)
        return kept

    # -- HTK --------------------------------------------------------------------------

    def take_outputs(self, rows: Sequence[Row]) -> None:
        """Take away the output symbols of HTK's dictionaries, `WORD [OUTPUT] PHONE`.

        Raises:
            UserError: a symbol may be a phone, or a word is the number of a category.
        """
        with_output = [
            row
            for row in rows
            if len(row.fields) > 1 and OUTPUT.fullmatch(row.fields[0])
        ]
        chosen = {id(row) for row in with_output}
        names = {row.fields[0] for row in with_output}
        for row in rows if names else ():
            others = row.fields[1:] if id(row) in chosen else row.fields
            if strange := names.intersection(others):
                raise fault(
                    self.file,
                    row,
                    f"word {row.word}: {min(strange)} may be a phone, or the output "
                    "symbol of HTK's dictionaries",
                    "rename the phone, or remove the output symbols",
                )
        if with_output and all(row.word.isdecimal() for row in rows):
            raise fault(
                self.file,
                rows[0],
                "the words are numbers of categories, as in a dictionary of a Julius "
                "grammar",
                "write the word, which is in brackets, in their place",
            )
        for row in with_output:
            output = row.fields.pop(0)
            is_other = output[1:-1] not in (row.word, "")
            self.changed[
                "output symbols [..] that are the word, left out"
            ] += not is_other
            self.changed["output symbols [..] other than the word, left out"] += (
                is_other
            )
            row.word = _ESCAPED.sub(r"\1", row.word)
        self.changed = +self.changed

    # -- columns ----------------------------------------------------------------------

    def split_columns(
        self, rows: Sequence[Row], *, has_probabilities: bool | None
    ) -> None:
        """Part the numbers after words from phones.

        Raises:
            UserError: a number may be a probability or a phone.
        """
        if has_probabilities is False:
            return
        counts = self._column_counts(rows, is_stated=bool(has_probabilities))
        for row, count in zip(rows, counts, strict=True):
            row.columns, row.fields = row.fields[:count], row.fields[count:]

    def _column_counts(self, rows: Sequence[Row], *, is_stated: bool) -> list[int]:
        counts = [_sure_columns(row.fields) for row in rows]
        if is_stated:
            return [count or 1 for count in counts]
        open_rows = [row for row, count in zip(rows, counts, strict=True) if not count]
        if not any(counts) and not _all_numbers(rows):
            return counts  # without columns: integers are phones
        if _all_numbers(rows):
            if not any(counts):
                self._refuse_counts(rows)
            return [count or 1 for count in counts]
        phones = {
            phone
            for row, count in zip(rows, counts, strict=True)
            for phone in row.fields[count or _is_zero_or_one(row.fields) :]
        }
        for row in open_rows:
            if _is_zero_or_one(row.fields) and row.fields[0] in phones:
                raise fault(
                    self.file,
                    row,
                    f"word {row.word}: {row.fields[0]} may be a probability or a phone",
                    f"write {row.fields[0]}.0 if it is a probability, or put a "
                    "probability on every line",
                )
        return [
            count or int(_is_zero_or_one(row.fields))
            for row, count in zip(rows, counts, strict=True)
        ]

    def _refuse_counts(self, rows: Iterable[Row]) -> None:
        """Refuse integers behind every word, unless they are all 0 or 1."""
        row = next((r for r in rows if not _is_zero_or_one(r.fields)), None)
        if row is not None:
            raise fault(
                self.file,
                row,
                f"word {row.word}: {row.fields[0]} is a number, as follows the word on "
                "every line, but not a probability",
                "remove counts or ranks; if they are phones, set "
                "lang.has_probabilities to false",
            )

    # -- words and phones -------------------------------------------------------------

    def clean_word(self, row: Row) -> None:
        """Compose a word (NFC), and take out what nobody sees.

        Raises:
            UserError: nothing is left, or it has control characters.
        """
        if row.word.isascii() and row.word.isprintable():
            return
        seen = _INVISIBLE.sub("", row.word)
        if seen != row.word:
            self.changed["words freed of invisible characters"] += 1
        composed = unicodedata.normalize("NFC", seen)
        if composed != seen:
            self.changed["words composed (Unicode NFC)"] += 1
        if not composed or _CONTROL.search(composed):
            raise fault(
                self.file,
                row,
                f"word {row.word!r} has control characters, or nothing but invisible "
                "ones",
                "mend or remove the line",
            )
        row.word = composed

    def check_phones(self, row: Row) -> None:
        """Refuse numbers, and what nobody sees, among phones.

        Raises:
            UserError: names line, word and phone.
        """
        for phone in row.fields:
            if _INVISIBLE.search(phone) or _CONTROL.search(phone):
                raise fault(
                    self.file,
                    row,
                    f"word {row.word}: phone {phone!a} has a character that can't be "
                    "seen",
                    "remove the character",
                )
            if _JULIUS_SCORE.fullmatch(phone) or (
                is_number(phone) and not _INTEGER.fullmatch(phone)
            ):
                raise fault(
                    self.file,
                    row,
                    f"word {row.word}: phone {phone} is a number; {_columns_of(row)}",
                    "write WORD PHONES, WORD PROBABILITY PHONES, or WORD and four "
                    "numbers: probability, of silence after, two corrections",
                )

    def leave_out_marks(self, rows: Sequence[Row]) -> None:
        """Leave out marks of syllables and stress that stand where phones do.

        What is all of some word's pronunciation is a phone.
        """
        marks = {*_MARKS}
        if _stands_between_phones(_MARK_OR_PHONE, rows):
            marks.add(_MARK_OR_PHONE)
        found = [row for row in rows if not marks.isdisjoint(row.fields)]
        for row in found:
            if marks.issuperset(row.fields):
                marks.difference_update(row.fields)
        for row in found:
            kept = [phone for phone in row.fields if phone not in marks]
            if kept != row.fields:
                self.changed[
                    "lines whose marks of syllables or stress are left out"
                ] += 1
                row.fields = kept

    def unify_phones(self, rows: Iterable[Row]) -> None:
        """Give phones that differ in Unicode's normal form only the first one's."""
        first: dict[str, str] = {}
        for row in rows:
            if all(map(str.isascii, row.fields)):
                continue
            same = [
                first.setdefault(unicodedata.normalize("NFC", phone), phone)
                for phone in row.fields
            ]
            if same != row.fields:
                self.changed["lines with a phone in another normal form"] += 1
                row.fields = same

    def fold_variants(self, rows: Sequence[Row]) -> None:
        """Make `WORD(2)` the word, if the file numbers variants so.

        It does if one of them has its bare word, or another number, beside it.
        """
        found = [
            (row, match) for row in rows if (match := _VARIANT.fullmatch(row.word))
        ]
        if not found:
            return
        words = {row.word for row in rows}
        bases = Counter(base for base, _ in {(m[1], m[2]) for _, m in found})
        if any(base in words or number > 1 for base, number in bases.items()):
            self.changed["variants like WORD(2) made the word"] += len(found)
            for row, match in found:
                row.word = match[1]
        else:
            self.changed["words like WORD(2) kept, whose WORD is not there"] += len(
                found
            )


def _stands_between_phones(mark: str, rows: Iterable[Row]) -> bool:
    """Return whether many lines have a mark, none of them first or last."""
    found = [row.fields for row in rows if mark in row.fields]
    edges = (edge for fields in found for edge in (fields[0], fields[-1]))
    return len(found) >= MANY and mark not in edges


def _is_decimal(text: str) -> bool:
    """Return whether a field is a number that can't be a phone."""
    return is_number(text) and not _INTEGER.fullmatch(text)


def _is_zero_or_one(fields: Sequence[str]) -> bool:
    """Return whether the integer 0 or 1 follows the word."""
    return bool(fields) and fields[0] in ("0", "1")


def _sure_columns(fields: Sequence[str]) -> int:
    """Return how many numbers after a word are columns for sure."""
    leading = [is_number(text) for text in fields[:4]]
    if len(leading) == 4 and all(leading) and any(map(_is_decimal, fields[1:4])):
        return 4
    return int(bool(fields) and _is_decimal(fields[0]))


def _all_numbers(rows: Sequence[Row]) -> bool:
    """Return whether every word is followed by a number, and at least one field."""
    return all(len(r.fields) > 1 and is_number(r.fields[0]) for r in rows)


def _columns_of(row: Row) -> str:
    """Say how many numbers follow a word."""
    count = len(row.columns)
    return f"{count or 'no'} column{'s' * (count != 1)} of numbers before it"


def _comment_at(row: Row) -> int:
    """Return where a field `#` is; behind the last if none is."""
    return row.fields.index("#") if "#" in row.fields else len(row.fields)


def _has_comment(row: Row) -> bool:
    """Return whether a row may have, or be, a comment after `#`."""
    return "#" in row.fields or _HASHES.fullmatch(row.word) is not None
