"""Units of words: what a decoder with attention predicts one after another.

Unit 0 ends a sequence. The others are, by kind,

    phone the phones of the lexicon (as labels of CTC: all variants are one, the
               optional silence has none); a transcript has the likeliest pronunciation
               of each word
    character  the characters of the lexicon's words, and `<space>` behind each word
    word       the words of the lexicon

In transcripts words outside the lexicon have the unit of the unknown word, or its
phones; as characters they are spelled, and words without a speech phone (noises) are
left out. A transcript without words is a sequence without units: its end alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from latflow.align.transcript_graphs import (
    Compilation,
    TranscriptGraphs,
    write_transcript_graphs,
)
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.lang.directory import Lang
from latflow.ledger import Ledger

_END = "</s>"
SPACE = "<space>"


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a language.

    Attributes:
        kind: `phone`, `character` or `word`.
        names: of the units; the first is the end.
        lang: the language directory.
    """

    kind: str
    names: tuple[str, ...]
    lang: Lang

    @classmethod
    def of(cls, lang: Lang, kind: str) -> Units:
        """Find the units of a language directory.

        Raises:
            UserError: its words have none.
        """
        if kind == "phone":
            sets = [p for p in lang.phone_sets if lang.optional_silence not in p]
            names = [lang.base_phone(phones[0]) for phones in sets]
        elif kind == "character":
            names = [*sorted({c for w in lang.speech_words for c in w}), SPACE]
        else:
            names = sorted(w for w in lang.lexicon if w in lang.word_ids)
        if not lang.speech_words:
            raise UserError(
                "no word of the lexicon has a speech phone",
                file=lang.folder,
                remedy="name a lexicon with words",
            )
        return cls(kind, (_END, *names), lang)

    def check(self, names: Sequence[str], file: Path) -> None:
        """Refuse a language whose units are not those of a model.

        Raises:
            UserError: they differ.
        """
        if tuple(names) != self.names:
            raise UserError(
                f"the model has other units ({len(names)}) than the lexicon has "
                f"({len(self.names)})",
                file=file,
                remedy="use the language directory that it was trained with, or train "
                "it again",
            )

    def spell(self, text: str) -> list[int] | str:
        """Return the units of a transcript, without the end, or why there are none."""
        found: list[int] = []
        for word in text.split():
            units = self._of_word(word)
            if isinstance(units, str):
                return units
            found += units
        return found

    def spellings(self, word: str) -> list[tuple[int, ...]]:
        """Return the units of a word of the lexicon: one, or one a pronunciation."""
        if self.kind == "phone":
            entries = self.lang.lexicon[word]
            known = self._ids
            return [tuple(known[p] for p in e if p in known) for _, e in entries]
        units = self._of_word(word)
        assert not isinstance(units, str)
        return [tuple(units)]

    def _of_word(self, word: str) -> list[int] | str:
        """Return the units of a word of a transcript, or why it has none."""
        lang = self.lang
        if self.kind == "character":
            return self._characters(word)
        known = word if lang.is_known(word) else lang.oov_word
        if known not in lang.lexicon:
            return f"the word {known} has no pronunciation"
        if self.kind == "word":
            return [self._ids[known]]
        _, phones = max(lang.lexicon[known], key=lambda entry: entry[0])
        return [self._ids[phone] for phone in phones if phone in self._ids]

    def _characters(self, word: str) -> list[int] | str:
        """Return the characters of a word and the space; none of a noise."""
        if word in self.lang.lexicon and word not in self._speech_words:
            return []
        for character in word:
            if character not in self._ids:
                return f"the character {character!r} of {word} is in no lexicon word"
        return [self._ids[c] for c in (*word, SPACE)]

    @cached_property
    def _speech_words(self) -> frozenset[str]:
        return frozenset(self.lang.speech_words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Unit of each name; of phones, of all in one set."""
        if self.kind != "phone":
            return {name: number for number, name in enumerate(self.names)}
        lang = self.lang
        sets = [p for p in lang.phone_sets if lang.optional_silence not in p]
        return {
            lang.base_phone(phone): number
            for number, phones in enumerate(sets, start=1)
            for phone in phones
        }


class UnitGraphs(TranscriptGraphs):
    """The transcripts of a split as units: acceptors of one path; labels are units."""

    FORMAT = "latflow-units-1"
    KIND = "store of units"
    FACTS: ClassVar = {
        **TranscriptGraphs.FACTS,
        "kind": str,
        "names": " ".join,  # of strings alone
    }

    def graph(self, index: int) -> Graph:
        """See `GraphStore.graph`."""
        graph = super().graph(index)
        units = graph.ilabel
        if len(units) and not 1 <= units.min() <= units.max() < self.num_classes:
            raise UserError(
                f"units {units.min()} to {units.max()}, where 1 to "
                f"{self.num_classes - 1} have names",
                file=self.folder,
                utterance=self.utt_ids[index],
                remedy=self.REMEDY,
            )
        return graph

    @property
    def num_classes(self) -> int:
        """Units, the end among them."""
        return len(self.names)

    @property
    def kind(self) -> str:
        """Kind of the units; see `Units`."""
        return self.meta["kind"]

    @property
    def names(self) -> list[str]:
        """Names of the units."""
        return self.meta["names"]


def unit_graph(units: Sequence[int]) -> Graph:
    """Return the acceptor of a sequence of units; its arcs are in their order."""
    count = len(units)
    arcs = np.zeros(count, ARC)
    arcs["ilabel"] = arcs["olabel"] = units
    arcs["next_state"] = np.arange(1, count + 1)
    final = np.full(count + 1, np.inf, np.float32)
    final[-1] = 0.0
    return Graph.from_arc_list(0, np.arange(count), arcs, final)


def spell_transcripts(
    frames_dir: Path,
    lang_dir: Path,
    out_dir: Path,
    *,
    kind: str,
    subsampling: int = 1,
    max_skipped_fraction: float = 1.0,
    threads: int = 1,
) -> None:
    """Write the units of every transcribed utterance (stage).

    Writes `ledger.jsonl` beside them: utterances with a word that no units spell.

    Args:
        frames_dir: the features of a split.
        lang_dir: the lang directory.
        out_dir: the store, replaced as a whole.
        kind: of the units; see `Units`.
        subsampling: input frames per output frame of the network.
        max_skipped_fraction: share of the utterances that may have none.
        threads: utterances at a time.

    Raises:
        UserError: a file is missing or garbled, more utterances than that are skipped,
            or the disk is full.
    """
    units = Units.of(Lang.load(lang_dir), kind)

    def make(text: str, _: int) -> Graph | str:
        spelled = units.spell(text)
        return spelled if isinstance(spelled, str) else unit_graph(spelled)

    meta: dict[str, Any] = {
        "subsampling": subsampling,
        "kind": kind,
        "names": units.names,
    }
    write_transcript_graphs(
        Compilation(
            kind=UnitGraphs, make=make, meta=meta, ledger=Ledger("spell_transcripts")
        ),
        frames_dir=frames_dir,
        out_dir=out_dir,
        max_skipped_fraction=max_skipped_fraction,
        threads=threads,
    )
