"""Stage functions of the language side: lang directory, language model, grammar.

`make_lang` writes what Kaldi's `utils/prepare_lang.sh` writes; `make_lm` fetches or
estimates an ARPA model; `make_grammar` turns it into the acceptor G.

Public: `make_lang`, `make_lm`, `make_grammar`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latflow.files import atomic_directory
from latflow.hmm.topology import Topology
from latflow.lang.lexicon import (
    EPSILON,
    GRAMMAR_DISAMBIG,
    SENTENCE_END,
    SENTENCE_START,
    Lexicon,
    Pronunciation,
    read_lexicon,
    write_lexicon,
)
from latflow.lang.lexicon_fst import add_disambiguation, lexicon_fst
from latflow.lang.phones import PhoneInventory, place_markers, word_boundary_kind

log = logging.getLogger(__name__)


def make_lang(lexicon: str | Path, out_dir: str | Path, *, options: Mapping[str, Any]) -> None:
    """Make a Kaldi lang directory of a lexicon.

    Args:
        lexicon: the lexicon file, see `latflow.lang.lexicon`.
        out_dir: folder to write: `phones.txt words.txt topo L.fst L_disambig.fst oov.txt
            oov.int lexicon.txt lexiconp.txt` (the latter two without position markers)
            and the lists of `phones/`.
        options: section `lang` of the configuration (its key `lexicon` is not read).

    Raises:
        UserError: the lexicon is faulty, or does not fit the configured phones.

    Source: Kaldi `utils/prepare_lang.sh`; the files are equal to its byte for byte.
    """
    given = read_lexicon(
        lexicon,
        has_probabilities=options["has_probabilities"],
        strip_stress=options["strip_stress"],
        max_normalise=options["max_normalise"],
    )
    inventory = PhoneInventory.of_lexicon(given, options)
    added = [(options["oov_word"], options["spoken_noise_phone"])]
    if options["silence_word"] is not None:
        added.insert(0, (options["silence_word"], options["silence_phone"]))
    complete = given.with_words(added)
    parts = _Parts.of(complete, inventory)
    with atomic_directory(out_dir) as folder:
        (folder / "phones").mkdir()
        write_lexicon(complete, folder / "lexicon.txt", with_probabilities=False)
        write_lexicon(complete, folder / "lexiconp.txt", with_probabilities=True)
        _write_tables(folder, parts, options["oov_word"])
        _write_phone_lists(folder / "phones", parts)
        _write_align_lexicon(folder / "phones", parts)
        _write_topology(folder, parts, options)
        _write_transducers(folder, parts, options["silence_probability"])
    log.info(
        "%s: %d words, %d pronunciations, %d phones, %d disambiguation symbols",
        lexicon,
        len(complete.words),
        len(complete.entries),
        len(parts.silence) + len(parts.nonsilence),
        len(parts.disambig),
    )


@dataclass(frozen=True)
class _Parts:
    """Everything that the files of a lang directory are written from."""

    inventory: PhoneInventory
    entries: Sequence[Pronunciation]  # with position markers
    entries_disambig: Sequence[Pronunciation]  # and disambiguation symbols
    silence: list[str]
    nonsilence: list[str]
    disambig: list[str]
    phone_ids: dict[str, int]
    word_ids: dict[str, int]

    @classmethod
    def of(cls, lexicon: Lexicon, inventory: PhoneInventory) -> _Parts:
        """Mark the phones and number everything."""
        entries = list(lexicon.entries)
        if inventory.position_dependent:
            entries = [replace(e, phones=place_markers(e.phones)) for e in entries]
        entries_disambig, highest = add_disambiguation(entries)
        silence, nonsilence = inventory.silence_list(), inventory.nonsilence_list()
        # one more than the words need: the symbol of optional silence
        disambig = [f"#{number}" for number in range(highest + 2)]
        phones = [EPSILON, *silence, *nonsilence, *disambig]
        words = [EPSILON, *lexicon.words]
        words += [GRAMMAR_DISAMBIG, SENTENCE_START, SENTENCE_END]
        return cls(
            inventory,
            entries,
            entries_disambig,
            silence,
            nonsilence,
            disambig,
            {phone: number for number, phone in enumerate(phones)},
            {word: number for number, word in enumerate(words)},
        )


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write lines of text."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_tables(folder: Path, parts: _Parts, oov_word: str) -> None:
    """Write the symbol tables and the unknown word."""
    _write(folder / "phones.txt", (f"{p} {n}" for p, n in parts.phone_ids.items()))
    _write(folder / "words.txt", (f"{w} {n}" for w, n in parts.word_ids.items()))
    _write(folder / "oov.txt", [oov_word])
    _write(folder / "oov.int", [str(parts.word_ids[oov_word])])


def _write_phone_lists(folder: Path, parts: _Parts) -> None:
    """Write the lists of `phones/`: as text, as ids, and joined by colons."""
    ids = parts.phone_ids
    plain = {
        "silence": parts.silence,
        "nonsilence": parts.nonsilence,
        "optional_silence": [parts.inventory.optional_silence],
        "disambig": parts.disambig,
        "context_indep": parts.silence,
    }
    for name, phones in plain.items():
        numbers = [str(ids[phone]) for phone in phones]
        _write(folder / f"{name}.txt", phones)
        _write(folder / f"{name}.int", numbers)
        _write(folder / f"{name}.csl", [":".join(numbers)])
    for name, lines, end in (
        ("sets", parts.inventory.sets(), ""),
        ("extra_questions", parts.inventory.extra_questions(), " "),
    ):
        _write(folder / f"{name}.txt", (" ".join(line) + end for line in lines))
        _write(folder / f"{name}.int", (_join(ids, line) for line in lines))
    roots = parts.inventory.roots()
    _write(folder / "roots.txt", (" ".join(line) for line in roots))
    _write(
        folder / "roots.int",
        (f"{' '.join(line[:2])} {_join(ids, line[2:])}" for line in roots),
    )
    if parts.inventory.position_dependent:
        kinds = {p: word_boundary_kind(p) for p in parts.silence + parts.nonsilence}
        _write(folder / "word_boundary.txt", (f"{p} {k}" for p, k in kinds.items()))
        _write(
            folder / "word_boundary.int", (f"{ids[p]} {k}" for p, k in kinds.items())
        )
    _write(folder / "wdisambig.txt", [GRAMMAR_DISAMBIG])
    _write(folder / "wdisambig_phones.int", [str(ids[GRAMMAR_DISAMBIG])])
    _write(folder / "wdisambig_words.int", [str(parts.word_ids[GRAMMAR_DISAMBIG])])


def _join(ids: Mapping[str, int], symbols: Iterable[str]) -> str:
    """Symbols as ids, joined by blanks."""
    return " ".join(str(ids[symbol]) for symbol in symbols)


def _write_align_lexicon(folder: Path, parts: _Parts) -> None:
    """Write the lexicon that aligns lattices with words, sorted by bytes."""
    rows = {(entry.word, entry.word, *entry.phones) for entry in parts.entries}
    rows.add((EPSILON, EPSILON, parts.inventory.optional_silence))
    ordered = sorted(rows, key=lambda row: " ".join(row).encode())
    _write(folder / "align_lexicon.txt", (" ".join(row) for row in ordered))
    _write(
        folder / "align_lexicon.int",
        (
            f"{_join(parts.word_ids, row[:2])} {_join(parts.phone_ids, row[2:])}"
            for row in ordered
        ),
    )


def _write_topology(folder: Path, parts: _Parts, options: Mapping[str, Any]) -> None:
    """Write the HMM topologies."""
    topology = Topology.standard(
        [parts.phone_ids[phone] for phone in parts.nonsilence],
        [parts.phone_ids[phone] for phone in parts.silence],
        options["num_nonsilence_states"],
        options["num_silence_states"],
    )
    topology.save(folder / "topo")


def _write_transducers(
    folder: Path, parts: _Parts, silence_probability: float
) -> None:
    """Write L.fst for training, and L_disambig.fst for decoding graphs."""
    tables = (parts.phone_ids, parts.word_ids)
    silence = parts.inventory.optional_silence
    plain = lexicon_fst(
        parts.entries,
        *tables,
        silence_phone=silence,
        silence_probability=silence_probability,
    )
    plain.write(str(folder / "L.fst"))
    with_disambig = lexicon_fst(
        parts.entries_disambig,
        *tables,
        silence_phone=silence,
        silence_probability=silence_probability,
        silence_disambig=parts.disambig[-1],
        pass_through=(
            parts.phone_ids[GRAMMAR_DISAMBIG],
            parts.word_ids[GRAMMAR_DISAMBIG],
        ),
    )
    with_disambig.write(str(folder / "L_disambig.fst"))
