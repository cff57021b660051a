"""Pronunciation lexica: words, and the phone sequences that speakers say for them.

A lexicon file has one pronunciation a line, `WORD PHONE PHONE ...` or, with the
probability of that pronunciation given the word, `WORD 0.7 PHONE PHONE ...` (Kaldi's
`lexicon.txt` and `lexiconp.txt`). A word with several lines has alternatives. Fields
are separated by blanks or tabs; empty lines, and lines that begin with `;;;` (as in the
CMU dictionary), are passed over. Case is kept: `Yes` and `YES` are two words.

Public: `Pronunciation`, `Lexicon`, `read_lexicon`, `write_lexicon`, `base_phone`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latflow.errors import UserError
from latflow.files import atomic_output, read_lines

log = logging.getLogger(__name__)

EPSILON = "<eps>"
GRAMMAR_DISAMBIG = "#0"  # the symbol on backoff arcs of G, in words.txt and phones.txt
SENTENCE_START = "<s>"
SENTENCE_END = "</s>"
RESERVED_WORDS = (EPSILON, GRAMMAR_DISAMBIG, SENTENCE_START, SENTENCE_END)
COMMENT = ";;;"
_PROBABILITY = re.compile(r"(\d+\.\d*|\.\d+|1)([eE][-+]?\d+)?")
_DISAMBIG = re.compile(r"#\d+")
_MARK = re.compile(r"(.*\D)(\d+)")


@dataclass(frozen=True)
class Pronunciation:
    """One way to say a word.

    Attributes:
        word: the word, as spelt in transcripts.
        phones: its phones, without word-position markers; never empty.
        probability: of this pronunciation, relative to the word's others; in (0, 1].
        line: line of the lexicon file that it comes from; 0 if it was added.
    """

    word: str
    phones: tuple[str, ...]
    probability: float = 1.0
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations in the order of their file.

    Attributes:
        entries: no two are equal in both word and phones.
        file: the file they come from; error messages name it.
    """

    entries: tuple[Pronunciation, ...]
    file: Path | None = None

    @property
    def words(self) -> list[str]:
        """The distinct words, sorted by bytes (the order of Kaldi's words.txt)."""
        return sorted({entry.word for entry in self.entries}, key=str.encode)

    @property
    def phones(self) -> list[str]:
        """The distinct phones, sorted by bytes."""
        found = {phone for entry in self.entries for phone in entry.phones}
        return sorted(found, key=str.encode)

    def by_word(self) -> dict[str, list[tuple[float, tuple[str, ...]]]]:
        """Return word -> its (probability, phones), in file order."""
        found: dict[str, list[tuple[float, tuple[str, ...]]]] = {}
        for entry in self.entries:
            found.setdefault(entry.word, []).append((entry.probability, entry.phones))
        return found

    def with_words(self, added: Sequence[tuple[str, str]]) -> Lexicon:
        """Put (word, phone) entries in front, each unless the word is there already."""
        present = {entry.word for entry in self.entries}
        new = [Pronunciation(w, (p,)) for w, p in added if w not in present]
        return replace(self, entries=(*new, *self.entries))


def read_lexicon(
    path: str | Path,
    *,
    has_probabilities: bool | None = None,
    strip_stress: bool = False,
    max_normalize: bool = True,
) -> Lexicon:
    """Read a pronunciation lexicon.

    Args:
        path: the lexicon; read through gzip if its name ends in `.gz`.
        has_probabilities: whether the second field is a probability; None looks whether
            every line has one there (and at least one phone after it).
        strip_stress: take digits off the ends of phones (`AH0` becomes `AH`);
            pronunciations that become equal are merged.
        max_normalize: divide the probabilities of each word by their largest, so that
            its best pronunciation costs nothing; a word with many alternatives would
            else be punished for them. Source: Kaldi `utils/dict_dir_add_pronprobs.sh`
            (`--max-normalize`).

    Returns:
        The lexicon. Of pronunciations given twice, the first stays, with the larger of
        the probabilities.

    Raises:
        UserError: the file is missing, empty or not UTF-8; a word has no pronunciation
            or is reserved; a probability is not in (0, 1]; a phone looks like a
            disambiguation symbol.
    """
    file = Path(path)
    rows = list(_rows(file))
    if not rows:
        raise UserError(
            "the lexicon is empty",
            file=file,
            remedy="give one pronunciation a line: WORD PHONE PHONE ...",
        )
    if has_probabilities is None:
        has_probabilities = all(
            len(fields) > 2 and _PROBABILITY.fullmatch(fields[1]) for _, fields in rows
        )
    entries = [
        _entry(number, fields, file, has_probabilities=has_probabilities)
        for number, fields in rows
    ]
    if strip_stress:
        entries = [
            replace(e, phones=tuple(base_phone(p) for p in e.phones)) for e in entries
        ]
    entries = _merge(entries, file)
    if max_normalize:
        entries = _max_normalize(entries)
    return Lexicon(tuple(entries), file)


def write_lexicon(
    lexicon: Lexicon, path: str | Path, *, with_probabilities: bool
) -> None:
    """Write `lexicon.txt` or, with probabilities, `lexiconp.txt`."""
    with (
        atomic_output(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        for entry in lexicon.entries:
            middle = f" {entry.probability!r}" if with_probabilities else ""
            stream.write(f"{entry.word}{middle} {' '.join(entry.phones)}\n")


def base_phone(phone: str) -> str:
    """Return a phone without the stress or tone digits at its end: `AH0` gives `AH`."""
    match = _MARK.fullmatch(phone)
    return match[1] if match else phone


def mark_of(phone: str) -> str:
    """Return the stress or tone digits at the end of a phone; empty if it has none."""
    match = _MARK.fullmatch(phone)
    return match[2] if match else ""


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of each line that says something."""
    for number, line in read_lines(file):
        fields = line.split()
        if fields and not line.startswith(COMMENT):
            yield number, fields


def _entry(
    number: int, fields: list[str], file: Path, *, has_probabilities: bool
) -> Pronunciation:
    """Check one line and make an entry of it."""
    word, *rest = fields
    probability = 1.0
    if word in RESERVED_WORDS:
        raise UserError(
            f"line {number}: {word} is a reserved symbol, not a word",
            file=file,
            remedy="remove the line or spell the word differently",
        )
    if has_probabilities and rest:
        probability = _probability(rest.pop(0), number, word, file)
    if not rest:
        raise UserError(
            f"line {number}: word {word} has no pronunciation",
            file=file,
            remedy="add its phones, or remove the line (the word then counts as "
            "unknown)",
        )
    for phone in rest:
        if phone == EPSILON or _DISAMBIG.fullmatch(phone):
            raise UserError(
                f"line {number}: word {word}: {phone} is a reserved symbol, not a "
                "phone",
                file=file,
                remedy="rename the phone",
            )
    return Pronunciation(word, tuple(rest), probability, number)


def _probability(text: str, number: int, word: str, file: Path) -> float:
    """Return the probability in the second field of a line."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= 1.0:
        raise UserError(
            f"line {number}: word {word}: {text} is not a probability above 0 and at "
            "most 1",
            file=file,
            remedy="write WORD PROBABILITY PHONE PHONE ...",
        )
    return value


def _merge(entries: Iterable[Pronunciation], file: Path) -> list[Pronunciation]:
    """Keep one of entries that are equal in word and phones."""
    found: dict[tuple[str, tuple[str, ...]], Pronunciation] = {}
    merged = 0
    for entry in entries:
        key = (entry.word, entry.phones)
        first = found.setdefault(key, entry)
        if first is not entry:
            merged += 1
            if entry.probability > first.probability:
                found[key] = replace(first, probability=entry.probability)
    if merged:
        log.info("%s: %d pronunciations equal to an earlier one, merged", file, merged)
    return list(found.values())


def _max_normalize(entries: list[Pronunciation]) -> list[Pronunciation]:
    """Scale each word's probabilities so that the largest is one."""
    largest: dict[str, float] = {}
    for entry in entries:
        largest[entry.word] = max(largest.get(entry.word, 0.0), entry.probability)
    return [replace(e, probability=e.probability / largest[e.word]) for e in entries]
