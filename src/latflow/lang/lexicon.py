"""Pronunciation lexica: words, and the phone sequences by which they are spoken.

A lexicon file has one pronunciation a line, `WORD PHONE PHONE ...`; with the
probability of that pronunciation given the word, `WORD 0.7 PHONE PHONE ...`; or with
silence around it, `WORD 0.7 0.2 1.1 0.9 PHONE PHONE ...` (Kaldi's `lexicon.txt`,
`lexiconp.txt` and `lexiconp_silprob.txt`; dictionaries of Montreal Forced Aligner). A
word with several lines has alternatives. `latflow.lang.lexicon_forms` has what other
forms are read. Case is kept: `Yes` and `YES` are two words.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latflow.corpus.words import RESERVED_WORDS
from latflow.errors import UserError
from latflow.files import atomic_output, write_text
from latflow.lang.lexicon_forms import read_rows
from latflow.lang.lexicon_rows import Row, is_number, refuse_title
from latflow.lang.silence import (
    SILENCE_FILE,
    SentenceSilence,
    SilenceModel,
    WordSilence,
    read_sentence_silence,
    write_sentence_silence,
)
from latflow.text_files import read_lines

log = logging.getLogger(__name__)

# The second is the symbol on backoff arcs of G, in words.txt and phones.txt.
EPSILON, GRAMMAR_DISAMBIG, SENTENCE_START, SENTENCE_END = RESERVED_WORDS
_DISAMBIG = re.compile(r"#\d+|#nonterm.*")
_SILENCE_NAMES = frozenset({"sil", "silence", "pau", "sp", "<sil>"})
_MARK = re.compile(r"(.*\D)(\d+)")


@dataclass(frozen=True)
class Pronunciation:
    """One pronunciation of a word.

    Attributes:
        word: the word, as spelt in transcripts.
        phones: its phones, without word-position markers; never empty.
        probability: of this pronunciation, relative to the word's others; in (0, 1].
        silence: around it; None if the lexicon does not have it.
        line: line of the lexicon file that it comes from; 0 if it was added.
    """

    word: str
    phones: tuple[str, ...]
    probability: float = 1.0
    silence: WordSilence | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Lexicon:
    """Pronunciations in the order of their file.

    Attributes:
        entries: no two are equal in both word and phones.
        file: the file they come from; error messages name it.
        edges: lines that give a reserved word the phone of silence (`<eps> sil` of
            Montreal Forced Aligner, `<s> SIL` of CMU Sphinx). No words; they tell the
            name of the phone.
        sentence: silence at the edges of sentences and overall, if there is a
            `silprob.txt`.
        speakers: the dictionary of each speaker who has one of his own, see
            `latflow.lang.speaker_dictionaries`.
    """

    entries: tuple[Pronunciation, ...]
    file: Path | None = None
    edges: tuple[Pronunciation, ...] = ()
    sentence: SentenceSilence | None = None
    speakers: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The distinct words, sorted by bytes (the order of Kaldi's words.txt)."""
        return sorted({entry.word for entry in self.entries}, key=str.encode)

    @property
    def phones(self) -> list[str]:
        """The distinct phones, sorted by bytes."""
        found = {phone for entry in self.entries for phone in entry.phones}
        return sorted(found, key=str.encode)

    @property
    def has_silence(self) -> bool:
        """Whether an entry has probabilities of silence around it."""
        return any(entry.silence for entry in self.entries)

    def silence_model(self, probability: float) -> SilenceModel | None:
        """Return the lexicon's probabilities of silence; None without any.

        Without a `silprob.txt` beside the lexicon (dictionaries of Montreal Forced
        Aligner have none) silence at the start of a sentence has the given probability
        and the end has no corrections, as by MFA's defaults (0.5, no costs). An entry
        without numbers has the overall probability behind it and corrections of 1.

        Args:
            probability: of silence where the lexicon has none, in [0, 1); 0 allows
                no silence, whatever the lexicon has.
        """
        if probability == 0.0 or not (self.has_silence or self.sentence):
            return None
        edges = self.sentence or SentenceSilence(probability, probability, 1.0, 1.0)
        neutral = WordSilence(edges.overall, 1.0, 1.0)
        words = tuple(entry.silence or neutral for entry in self.entries)
        return SilenceModel(*edges, words=words)

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
    """Read a pronunciation lexicon in any form of `latflow.lang.lexicon_forms`.

    Args:
        path: the lexicon; read through gzip if its name ends in `.gz`. If its entries
            tell of silence, Kaldi's `silprob.txt` is read where one lies beside it.
        has_probabilities: whether a probability follows every word (True) or no number
            is one (False); None finds out.
        strip_stress: take digits off the ends of phones (`AH0` becomes `AH`);
            pronunciations that become equal are merged.
        max_normalize: divide the probabilities of each word by their largest, so that
            its best pronunciation costs nothing; a word with many alternatives would
            else be punished for them. Source: Kaldi `utils/dict_dir_add_pronprobs.sh`
            (`--max-normalize`).

    Returns:
        The lexicon. Of pronunciations given twice, the one with the larger probability
        stays, at the place of the first.

    Raises:
        UserError: the file is missing, empty, not UTF-8 or in a form that is not read;
            a word has no pronunciation or is reserved; a probability is not in (0, 1];
            a phone is a number or looks like a disambiguation symbol.
    """
    file = Path(path)
    if file.suffix in {".yaml", ".yml"}:
        raise UserError(
            "names the dictionaries of speakers, and is none",
            file=file,
            remedy="name a dictionary; lang.lexicon and latflow align take such files",
        )
    rows = read_rows(file, has_probabilities=has_probabilities)
    lexicon = _lexicon_of(rows, file, strip_stress=strip_stress)
    if max_normalize:
        lexicon = replace(lexicon, entries=_max_normalize(lexicon.entries))
    beside = file.with_name(SILENCE_FILE)
    if not (lexicon.has_silence and beside.is_file()):
        return lexicon
    log.info("%s: silence at the edges of sentences is that of %s", file, beside.name)
    return replace(lexicon, sentence=read_sentence_silence(beside))


def read_new_words(path: str | Path) -> list[str]:
    """Read a list of words: lines of a lexicon, and words without phones.

    Returns:
        Lines: words alone first, then what `read_entry` reads.

    Raises:
        UserError: as `read_lexicon`, but for words that have no pronunciation; or the
            first line may be the title of a column.
    """
    file = Path(path)
    rows = read_rows(file, has_probabilities=None)
    alone = [row.word for row in rows if not (row.columns or row.fields)]
    if marked := [word for word in alone if word[1:].endswith((":", ";", ","))]:
        log.warning(
            "%s: words that end in a mark are added with it: %s", file, " ".join(marked)
        )
    spoken = [row for row in rows if row.columns or row.fields]
    if not rows:
        raise _empty(file)
    refuse_title(file, rows)
    entries = _lexicon_of(spoken, file).entries if spoken else ()
    lines = [entry_line(entry) for entry in _max_normalize(entries)]
    return [*dict.fromkeys(alone), *lines]


def _lexicon_of(
    rows: Sequence[Row], file: Path, *, strip_stress: bool = False
) -> Lexicon:
    """Make a lexicon of rows, see `read_lexicon`."""
    edges = [row for row in rows if _is_edge(row)]
    entries = [_entry(row, file) for row in rows if not _is_edge(row)]
    if not entries:
        raise _empty(file)
    if edges:
        log.info("%s: reserved words with silence, left out: %d", file, len(edges))
    if strip_stress:
        entries = [
            replace(e, phones=tuple(base_phone(p) for p in e.phones)) for e in entries
        ]
    _refuse_short_pauses(entries, file)
    return Lexicon(
        tuple(_merge(entries, file)),
        file,
        tuple(Pronunciation(e.word, tuple(e.fields), line=e.number) for e in edges),
    )


def read_entry(line: str) -> Pronunciation:
    """Read a word and its phones, maybe with a probability between them.

    Raises:
        UserError: there is no phone, or the probability is not in (0, 1].
    """
    word, *phones = line.split() or [""]
    probability = 1.0
    if phones and is_number(phones[0]):  # no phone is one
        text = phones.pop(0)
        probability = 0.0 if "," in text else float(text)
    if not phones or not 0.0 < probability <= 1.0:
        raise UserError(
            f"{line!r} is not a word and its phones",
            remedy="write WORD PHONE PHONE ...",
        )
    return Pronunciation(word, tuple(phones), probability)


def entry_line(entry: Pronunciation) -> str:
    """Return an entry as `read_entry` reads it."""
    return f"{entry.word} {entry.probability!r} {' '.join(entry.phones)}"


def read_written_lexicon(path: str | Path, *, with_probabilities: bool) -> Lexicon:
    """Read a lexicon as `write_lexicon` and Kaldi write it: nothing is found out.

    Args:
        path: the lexicon.
        with_probabilities: whether each word is followed by a probability.

    Raises:
        UserError: as `read_lexicon`.
    """
    file = Path(path)
    entries = []
    for number, line in read_lines(file):
        if line.strip():
            word, *fields = line.split()
            columns = fields[:with_probabilities]
            row = Row(number, word, fields[len(columns) :], columns)
            entries.append(_entry(row, file))
    if not entries:
        raise _empty(file)
    return Lexicon(tuple(_merge(entries, file)), file)


def write_lexicon(
    lexicon: Lexicon,
    path: str | Path,
    *,
    with_probabilities: bool,
    with_silence: bool = False,
) -> None:
    """Write `lexicon.txt`, or `lexiconp.txt` with probabilities.

    Args:
        lexicon: what to write.
        path: the file.
        with_probabilities: write the probability of each pronunciation.
        with_silence: write also silence around those whose silence is known.
    """
    with (
        atomic_output(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        for entry in lexicon.entries:
            middle = f" {entry.probability!r}" if with_probabilities else ""
            if with_silence and entry.silence:
                middle += "".join(f" {value!r}" for value in entry.silence)
            stream.write(f"{entry.word}{middle} {' '.join(entry.phones)}\n")


def base_phone(phone: str) -> str:
    """Return a phone without the stress or tone digits at its end: `AH0` gives `AH`."""
    match = _MARK.fullmatch(phone)
    return match[1] if match else phone


def mark_of(phone: str) -> str:
    """Return the stress or tone digits at the end of a phone; empty if it has none."""
    match = _MARK.fullmatch(phone)
    return match[2] if match else ""


def _empty(file: Path) -> UserError:
    """Return the error about a lexicon without words."""
    return UserError(
        "the lexicon is empty",
        file=file,
        remedy="give one pronunciation a line: WORD PHONE PHONE ...",
    )


def _is_edge(row: Row) -> bool:
    """Return whether a line gives a reserved word the phone of silence."""
    is_silence = len(row.fields) == 1 and row.fields[0].casefold() in _SILENCE_NAMES
    return is_silence and row.word in (EPSILON, SENTENCE_START, SENTENCE_END)


def _entry(row: Row, file: Path) -> Pronunciation:
    """Check one line and make an entry of it."""
    number, word = row.number, row.word
    if word in RESERVED_WORDS:
        raise UserError(
            f"line {number}: {word} is a reserved symbol, not a word",
            file=file,
            remedy="remove the line or spell the word differently",
        )
    probability, silence = 1.0, None
    if row.columns:
        probability = _number(row, 0, file, largest=1.0)
    if len(row.columns) > 1:
        below_one = math.nextafter(1.0, 0.0)
        silence = WordSilence(
            _number(row, 1, file, largest=below_one),
            _number(row, 2, file),
            _number(row, 3, file),
        )
    if not row.fields:
        raise UserError(
            f"line {number}: word {word} has no pronunciation",
            file=file,
            remedy="add its phones, or remove the line (the word then counts as "
            "unknown)",
        )
    for phone in row.fields:
        if phone == EPSILON or _DISAMBIG.fullmatch(phone):
            raise UserError(
                f"line {number}: word {word}: {phone} is a reserved symbol, not a "
                "phone",
                file=file,
                remedy="rename the phone",
            )
    return Pronunciation(word, tuple(row.fields), probability, silence, number)


_COLUMNS = (
    ("a probability above 0 and at most 1", "write WORD PROBABILITY PHONE PHONE ..."),
    (
        "a probability of silence above 0 and below 1",
        "write e.g. 0.01 or 0.99; L needs both silence and none",
    ),
    ("a correction of silence before the word, above 0", "write 1.0 for none"),
    ("a correction of no silence before the word, above 0", "write 1.0 for none"),
)


def _number(row: Row, place: int, file: Path, largest: float = math.inf) -> float:
    """Return a number behind the word of a line."""
    text = row.columns[place]
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= largest or value == math.inf:
        what, remedy = _COLUMNS[place]
        if "," in text:
            remedy = "write a point, not a comma: " + text.replace(",", ".")
        raise UserError(
            f"line {row.number}: word {row.word}: {text} is not {what}",
            file=file,
            remedy=remedy,
        )
    return value


def _refuse_short_pauses(entries: Iterable[Pronunciation], file: Path) -> None:
    """Refuse HTK's lexica in which all words end with the short pause `sp`."""
    longer = [entry for entry in entries if len(entry.phones) > 1]
    if longer and all(entry.phones[-1] == "sp" for entry in longer):
        raise UserError(
            f"line {longer[0].line}: word {longer[0].word}: its last phone is sp, as "
            "of all words with several phones: HTK's short pause",
            file=file,
            remedy="remove sp from the lexicon; silence after words is optional "
            "(lang.silence_probability)",
        )


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
                found[key] = replace(entry, line=first.line)
    if merged:
        log.info("%s: %d pronunciations equal to an earlier one, merged", file, merged)
    return list(found.values())


def _max_normalize(entries: Sequence[Pronunciation]) -> tuple[Pronunciation, ...]:
    """Scale each word's probabilities so that the largest is one."""
    largest: dict[str, float] = {}
    for entry in entries:
        largest[entry.word] = max(largest.get(entry.word, 0.0), entry.probability)
    return tuple(
        replace(e, probability=e.probability / largest[e.word]) for e in entries
    )


def write_silence(
    folder: Path, entries: Sequence[Pronunciation], model: SilenceModel
) -> None:
    """Write Kaldi's `lexiconp_silprob.txt` and `silprob.txt`."""
    rows = [
        f"{e.word} {e.probability:.6g} {s.after:.6g} {s.correction_silence:.6g} "
        f"{s.correction_none:.6g} {' '.join(e.phones)}\n"
        for e, s in zip(entries, model.words, strict=True)
    ]
    write_text(folder / "lexiconp_silprob.txt", "".join(rows))
    write_sentence_silence(folder / SILENCE_FILE, model)
