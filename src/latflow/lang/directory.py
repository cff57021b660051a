"""A Kaldi lang directory, read and checked: `Lang`.

Directories made by `latflow.lang.prepare.make_lang` and by Kaldi's `prepare_lang.sh`
are read alike. Ids are those of the files; 0 is epsilon in both symbol tables.

Source of the checks: Kaldi `utils/validate_lang.pl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.hmm.topology import Topology
from latflow.lang.lexicon import (
    EPSILON,
    GRAMMAR_DISAMBIG,
    RESERVED_WORDS,
    Pronunciation,
    read_written_lexicon,
)
from latflow.text_files import read_lines

REMEDY = "make the lang directory again; its files must come from one run"
GENERATED = "generated.tsv"  # entries of the lexicon that no person wrote
BOUNDARY_KINDS = frozenset({"begin", "end", "internal", "singleton", "nonword"})
_ID_DIGITS = 8  # of ids, at most
_DISAMBIG = re.compile(r"#\d+|#nonterm.*")
_POSITION = re.compile(r"_[BEIS]$")

Pronunciations = dict[str, list[tuple[float, tuple[str, ...]]]]


@dataclass(frozen=True)
class Lang:
    """Words, phones and their sets.

    Attributes:
        folder: where it was read.
        phone_ids: phone (with position markers, and disambiguation symbols) -> id.
        word_ids: word (and `#0`, `<s>`, `</s>`) -> id.
        oov_word: word that stands for words outside the lexicon.
        oov_id: its id.
        silence_phones: ids, as are the following.
        nonsilence_phones: speech phones.
        disambig_phones: disambiguation symbols.
        context_independent: phones modelled without context.
        optional_silence: phone that may stand between words.
        phone_sets: groups that share statistics (`sets.int`).
        roots: (states share a root, the root may be split, phones) a line of
            `roots.int`.
        extra_questions: sets that the tree may ask about besides those of clustering.
        word_boundary: phone -> begin, end, internal, singleton or nonword; None where
            phones are not position-dependent.
        topology: the HMMs of all phones.
    """

    folder: Path
    phone_ids: dict[str, int]
    word_ids: dict[str, int]
    oov_word: str
    oov_id: int
    silence_phones: list[int]
    nonsilence_phones: list[int]
    disambig_phones: list[int]
    context_independent: list[int]
    optional_silence: int
    phone_sets: list[list[int]]
    roots: list[tuple[bool, bool, list[int]]]
    extra_questions: list[list[int]]
    word_boundary: dict[int, str] | None
    topology: Topology = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> Lang:
        """Read a lang directory and check that its files fit together.

        Raises:
            UserError: a file is missing or garbled, or two files contradict each other.
        """
        base = Path(folder)
        if not base.is_dir():
            raise UserError(
                "no such lang directory", file=base, remedy="make it with make_lang"
            )
        phone_ids = read_symbols(base / "phones.txt")
        word_ids = read_symbols(base / "words.txt")
        lists = _Lists(base / "phones", frozenset(phone_ids.values()))
        oov_word = _single_word(base / "oov.txt")
        if oov_word not in word_ids:
            _refuse(base / "oov.txt", f"{oov_word} is not in words.txt")
        optional = lists.flat("optional_silence")
        if len(optional) != 1:
            _refuse(base / "phones/optional_silence.int", "it must name one phone")
        lang = cls(
            folder=base,
            phone_ids=phone_ids,
            word_ids=word_ids,
            oov_word=oov_word,
            oov_id=word_ids[oov_word],
            silence_phones=lists.flat("silence"),
            nonsilence_phones=lists.flat("nonsilence"),
            disambig_phones=lists.flat("disambig"),
            context_independent=lists.flat("context_indep"),
            optional_silence=optional[0],
            phone_sets=lists.nested("sets"),
            roots=lists.roots(),
            extra_questions=lists.nested("extra_questions"),
            word_boundary=lists.word_boundary(),
            topology=Topology.load(base / "topo"),
        )
        lang._check()
        return lang

    # -- words ----------------------------------------------------------------------

    def words_to_ids(self, text: str) -> list[int]:
        """Return the ids of the words of a transcript; unknown words become `oov_id`.

        Reserved symbols (`<eps>`, `#0`, `<s>`, `</s>`) count as unknown words too.
        """
        known = self._transcript_ids
        return [known.get(word, self.oov_id) for word in text.split()]

    def is_known(self, word: str) -> bool:
        """Return whether a word of a transcript is in the lexicon."""
        return word in self._transcript_ids

    def with_words(self, entries: Sequence[Pronunciation]) -> Lang:
        """Return the language with pronunciations of words, new or not.

        New words get the ids that follow the last one.

        Raises:
            UserError: a word is reserved.
        """
        word_ids = dict(self.word_ids)
        lexicon = dict(self.lexicon)
        number = max(word_ids.values())
        for entry in entries:
            if entry.word in RESERVED_WORDS:
                raise UserError(
                    f"the word {entry.word} is reserved", remedy="write another one"
                )
            if entry.word not in word_ids:
                number += 1
                word_ids[entry.word] = number
            own = (entry.probability, entry.phones)
            lexicon[entry.word] = [*lexicon.get(entry.word, ()), own]
        lang = replace(self, word_ids=word_ids)
        lang.__dict__["lexicon"] = lexicon  # instead of what the folder has
        return lang

    @cached_property
    def words(self) -> dict[int, str]:
        """Id -> word."""
        return {number: word for word, number in self.word_ids.items()}

    @cached_property
    def phones(self) -> dict[int, str]:
        """Id -> phone."""
        return {number: phone for phone, number in self.phone_ids.items()}

    @cached_property
    def lexicon(self) -> Pronunciations:
        """Word -> (probability, phones without position markers) of its pronunciations.

        Read from `lexiconp.txt` or `lexicon.txt` where they are, else from
        `phones/align_lexicon.txt` (Kaldi's directories), which has no probabilities.
        """
        for name, is_weighted in (("lexiconp.txt", True), ("lexicon.txt", False)):
            path = self.folder / name
            if path.is_file():
                read = read_written_lexicon(path, with_probabilities=is_weighted)
                return read.by_word()
        return self._align_lexicon()

    @cached_property
    def speech_words(self) -> list[str]:
        """Words with a pronunciation that has a speech phone, sorted by bytes.

        The others (silence, noises, the unknown word) are not what a language model
        should expect by itself.
        """
        speech = {self.base_phone(number) for number in self.nonsilence_phones}
        words = [
            word
            for word, pronunciations in self.lexicon.items()
            if any(speech & set(phones) for _, phones in pronunciations)
        ]
        return sorted(words, key=str.encode)

    def base_phone(self, phone_id: int) -> str:
        """Name of a phone without its position marker."""
        name = self.phones[phone_id]
        return name if self.word_boundary is None else _POSITION.sub("", name)

    # -- checks ---------------------------------------------------------------------

    def validate(self) -> None:
        """Check also the transducers: their labels must be in the symbol tables.

        Raises:
            UserError: a transducer is missing or garbled, or has a label that no symbol
                table knows; `L.fst` has disambiguation symbols.
        """
        disambig = set(self.disambig_phones)
        allowed = set(self.phone_ids.values())
        words = set(self.word_ids.values())
        for name, labels in (
            ("L.fst", allowed - disambig),
            ("L_disambig.fst", allowed),
        ):
            path = self.folder / name
            found_phones, found_words = _labels(path)
            for kind, strange in (
                ("phone", found_phones - labels),
                ("word", found_words - words),
            ):
                if strange:
                    _refuse(
                        path, f"label {min(strange)} is not a {kind} that it may have"
                    )

    @cached_property
    def _transcript_ids(self) -> dict[str, int]:
        """Ids of the words that may stand in transcripts."""
        return {w: i for w, i in self.word_ids.items() if w not in RESERVED_WORDS}

    def _check(self) -> None:
        """Refuse files that contradict each other."""
        if self.phone_ids.get(EPSILON) != 0:
            _refuse(self.folder / "phones.txt", f"{EPSILON} must have the id 0")
        if self.word_ids.get(EPSILON) != 0:
            _refuse(self.folder / "words.txt", f"{EPSILON} must have the id 0")
        if GRAMMAR_DISAMBIG not in self.word_ids:
            _refuse(self.folder / "words.txt", f"{GRAMMAR_DISAMBIG} is missing")
        self._check_phones()
        real = {*self.silence_phones, *self.nonsilence_phones}
        for name, covered in (
            ("phones/sets.int", [p for line in self.phone_sets for p in line]),
            ("phones/roots.int", [p for _, _, line in self.roots for p in line]),
            ("phones/word_boundary.int", list(self.word_boundary or real)),
            ("topo", list(self.topology.phones)),
        ):
            self._check_cover(self.folder / name, covered, real)

    def _check_phones(self) -> None:
        """Refuse phones.txt that is not silence, speech and disambiguation symbols."""
        silence, speech = set(self.silence_phones), set(self.nonsilence_phones)
        disambig = set(self.disambig_phones)
        both = (silence & speech) | (silence & disambig) | (speech & disambig)
        path = self.folder / "phones"
        if both:
            _refuse(path, f"phone {self.phones[min(both)]} is in two of its lists")
        for phone, number in self.phone_ids.items():
            listed = number in silence or number in speech or number in disambig
            if number and not listed and not _DISAMBIG.fullmatch(phone):
                _refuse(path, f"phone {phone} of phones.txt is in none of its lists")
        if self.optional_silence not in silence:
            _refuse(path / "optional_silence.int", "it is not a silence phone")
        if not set(self.context_independent) <= silence | speech:
            _refuse(path / "context_indep.int", "it has a disambiguation symbol")

    def _check_cover(
        self, path: Path, phones: Sequence[int], expected: set[int]
    ) -> None:
        """Refuse a file that does not mention every phone once, and nothing else."""
        found = set(phones)
        if len(found) < len(phones):
            _refuse(path, "it names a phone twice")
        for what, strange in (
            ("lacks", expected - found),
            ("has the unexpected", found - expected),
        ):
            if strange:
                name = self.phones.get(min(strange), str(min(strange)))
                _refuse(path, f"it {what} phone {name}")

    def _align_lexicon(self) -> Pronunciations:
        """Return the pronunciations from phones/align_lexicon.txt."""
        found: Pronunciations = {}
        path = self.folder / "phones/align_lexicon.txt"
        for number, fields in _fields(path):
            if len(fields) < 2:
                _refuse(path, f"line {number} is not a word, twice, and its phones")
            word, _, *phones = fields
            if word != EPSILON:
                if self.word_boundary is not None:
                    phones = [_POSITION.sub("", phone) for phone in phones]
                found.setdefault(word, []).append((1.0, tuple(phones)))
        return found


def read_symbols(path: str | Path) -> dict[str, int]:
    """Read a symbol table: lines of a symbol and its id.

    Raises:
        UserError: the file is missing or empty, a line is not `SYMBOL ID`, or a symbol
            or an id comes twice.
    """
    table: dict[str, int] = {}
    for number, line in read_lines(path):
        fields = line.split()
        if len(fields) != 2 or not _is_id(fields[1]):
            _refuse(path, f"line {number} is not a symbol and its id")
        if fields[0] in table:
            _refuse(path, f"line {number}: symbol {fields[0]} comes twice")
        table[fields[0]] = int(fields[1])
    if not table:
        _refuse(path, "the symbol table is empty")
    if len(set(table.values())) < len(table):
        _refuse(path, "two symbols have the same id")
    return table


def _is_id(text: str) -> bool:
    """Return whether a field is an id: arrays are as long as the highest one."""
    return text.isdecimal() and len(text) <= _ID_DIGITS


class _Lists:
    """Reader of the `.int` files of `lang/phones/`."""

    def __init__(self, folder: Path, known: frozenset[int]) -> None:
        self.folder = folder
        self.known = known

    def flat(self, name: str) -> list[int]:
        """Return a file with one phone a line."""
        return [phone for line in self.nested(name) for phone in line]

    def nested(self, name: str) -> list[list[int]]:
        """Return a file with several phones a line."""
        path = self.folder / f"{name}.int"
        return [self._ids(path, n, fields) for n, fields in _fields(path)]

    def roots(self) -> list[tuple[bool, bool, list[int]]]:
        """Return the lines of roots.int."""
        path = self.folder / "roots.int"
        result = []
        for number, fields in _fields(path):
            sharing, splitting = (*fields, "", "")[:2]
            if sharing not in {"shared", "not-shared"} or splitting not in {
                "split",
                "not-split",
            }:
                _refuse(path, f"line {number} is not [not-]shared [not-]split PHONES")
            phones = self._ids(path, number, fields[2:])
            result.append((sharing == "shared", splitting == "split", phones))
        return result

    def word_boundary(self) -> dict[int, str] | None:
        """Return the lines of word_boundary.int, if there is such a file."""
        path = self.folder / "word_boundary.int"
        if not path.is_file():
            return None
        result = {}
        for number, fields in _fields(path):
            if len(fields) != 2 or fields[1] not in BOUNDARY_KINDS:
                _refuse(path, f"line {number} is not a phone and its kind")
            result[self._ids(path, number, fields[:1])[0]] = fields[1]
        return result

    def _ids(self, path: Path, number: int, fields: Iterable[str]) -> list[int]:
        """Check the phones of one line."""
        phones = []
        for text in fields:
            if not _is_id(text) or int(text) not in self.known:
                _refuse(
                    path, f"line {number}: {text[:40]} is not a phone of phones.txt"
                )
            phones.append(int(text))
        return phones


def _fields(path: Path) -> list[tuple[int, list[str]]]:
    """Return number and fields of each line that is not empty."""
    return [(n, line.split()) for n, line in read_lines(path) if line.strip()]


def _single_word(path: Path) -> str:
    words = [word for _, line in read_lines(path) for word in line.split()]
    if len(words) != 1:
        _refuse(path, "it must hold one word")
    return words[0]


def _labels(path: Path) -> tuple[set[int], set[int]]:
    """Return the input and output labels of a transducer."""
    graph = Graph.load(path)
    if graph.num_arcs == 0:
        _refuse(path, "the transducer is empty")
    return set(np.unique(graph.ilabel)), set(np.unique(graph.olabel))


def _refuse(path: str | Path, what: str) -> NoReturn:
    raise UserError(what, file=path, remedy=REMEDY)
