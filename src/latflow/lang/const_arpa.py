r"""Kaldi's binary n-gram models: `G.carpa`, which `arpa-to-const-arpa` writes.

The file is one array of 32-bit words. A history has an entry in it: ln of the
probability of its last word, ln of its back-off weight, the number of n-grams that
continue from it, and for each of these its last word and a reference. The reference is
twice the distance to the entry of the n-gram, plus 1; where the distance is too large,
the same of its place in a second table, negated; and for an n-gram that is no history
the float ln of its probability, with the last bit cleared. A table has the entry of
each word.

In the older form of the file, numbers have their width before them, one by one.

Source: Kaldi `lm/const-arpa-lm.h`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.kaldi.io import KaldiReader
from latflow.lang.arpa import NONE, Level, NgramModel
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START

_TOKENS = ("LmInfo", "LmStates", "LmUnigram", "LmOverflow")
_HEAD = 3  # numbers of an entry before its n-grams
_MOST_ORDER = 100
_UNKNOWN = "<unk>"


@dataclass(frozen=True)
class _Tables:
    """Contents of a file.

    Attributes:
        start, end: ids of the words that begin and end a sentence.
        unknown: id of the unknown word; -1 without one.
        order: length of the longest n-grams.
        entries: int32[E].
        words: int64[W], place of each word's entry, plus 1; 0 for none.
        far: int64[F], places of entries that are far from where they are named.
    """

    start: int
    end: int
    unknown: int
    order: int
    entries: np.ndarray
    words: np.ndarray
    far: np.ndarray


def read_const_arpa(path: str | Path, words: Mapping[int, str]) -> NgramModel:
    """Read a `G.carpa`.

    Args:
        path: of the file.
        words: word id -> word, of the words.txt that it was made with.

    Returns:
        The model, with the words `<s>`, `</s>` and `<unk>` by these names.

    Raises:
        UserError: the file is missing or damaged, or has words that words.txt lacks.
    """
    with KaldiReader.open(path) as reader:
        tables = _read_tables(reader)
    try:
        return _model(tables, words)
    except UserError as error:
        raise error.at(file=path) from None


def _read_tables(reader: KaldiReader) -> _Tables:
    """Read either form."""
    if not reader.binary:
        reader.fail("no binary file of Kaldi's")
    is_new = reader.take_if(b"<ConstArpaLm> ")

    def numbers(name: str, width: int) -> np.ndarray:
        if not is_new:
            return _with_widths(reader, width, reader.int32())
        reader.expect(f"<{name}>")
        size = reader.int64() if name == "LmStates" else reader.int32()
        found = reader.array(f"<i{width}", size)
        reader.expect(f"</{name}>")
        return found

    if is_new:
        reader.expect("<LmInfo>")
    start, end, unknown, order = (reader.int32() for _ in range(4))
    if is_new:
        reader.expect("</LmInfo>")
    tables = _Tables(
        *(start, end, unknown, order),
        entries=numbers("LmStates", 4),
        words=numbers("LmUnigram", 8),
        far=numbers("LmOverflow", 8),
    )
    if is_new:
        reader.expect("</ConstArpaLm>")
    return tables


def _with_widths(reader: KaldiReader, width: int, count: int) -> np.ndarray:
    """Take numbers that have their width before each of them."""
    pairs = reader.array([("width", "i1"), ("number", f"<i{width}")], count)
    if (pairs["width"] != width).any():
        reader.fail(f"numbers that are not of {width} bytes each")
    return pairs["number"].copy()


def _model(tables: _Tables, names: Mapping[int, str]) -> NgramModel:
    """Make the levels of a model, short n-grams first."""
    ids = np.flatnonzero(tables.words)
    rows = np.full(len(tables.words), NONE)
    rows[ids] = np.arange(len(ids))
    special = {tables.start: SENTENCE_START, tables.end: SENTENCE_END}
    if tables.unknown >= 0:
        special[tables.unknown] = _UNKNOWN
    is_given = [0 < one < len(rows) and rows[one] >= 0 for one in special]
    if not (0 < tables.order <= _MOST_ORDER and all(is_given)):
        raise _damaged("its head")
    known = {**names, **special}
    missing = [int(one) for one in ids if int(one) not in known]
    if missing:
        raise UserError(
            f"it has the word {missing[0]}, which words.txt lacks",
            remedy="take the words.txt that it was made with",
        )
    levels = _Levels(tables, rows)
    return NgramModel([known[int(one)] for one in ids], levels.read(ids))


class _Levels:
    """Reads the n-grams of one length after those of another."""

    def __init__(self, tables: _Tables, rows: np.ndarray) -> None:
        self._tables, self._rows = tables, rows
        self._entries = tables.entries
        self._floats = tables.entries.view(np.float32)
        self._left = len(tables.entries) // 2  # an n-gram takes two numbers at least

    def read(self, ids: np.ndarray) -> list[Level]:
        """Return all levels.

        Args:
            ids: of the words that the model has, ascending.
        """
        places = self._checked(self._tables.words[ids] - 1)
        none = np.zeros(len(ids), np.int64)
        levels = [self._level(none, self._rows[ids], self._floats[places], places)]
        for _ in range(1, self._tables.order):
            parents = np.flatnonzero(places >= 0)
            level, places = self._next(parents, places[parents])
            levels.append(level)
        if (places >= 0).any() and self._tables.order > 1:
            raise _damaged("an n-gram that is longer than the longest")
        levels[-1] = Level(levels[-1].prefix, levels[-1].word, levels[-1].log_prob)
        return levels

    def _next(self, parents: np.ndarray, at: np.ndarray) -> tuple[Level, np.ndarray]:
        """Return the n-grams that continue from histories, and the places of entries.

        Args:
            parents: int64[H], rows of the histories in the level before.
            at: int64[H], places of their entries.
        """
        counts = self._entries[at + 2].astype(np.int64)
        self._left -= int(counts.sum())
        ends = at + _HEAD + 2 * counts
        if (counts < 0).any() or (ends > len(self._entries)).any() or self._left < 0:
            raise _damaged("numbers of n-grams")
        prefix = np.repeat(parents, counts)
        within = np.arange(len(prefix)) - np.repeat(np.cumsum(counts) - counts, counts)
        pairs = np.repeat(at + _HEAD, counts) + 2 * within
        ids, references = self._entries[pairs], self._entries[pairs + 1]
        if ((ids < 0) | (ids >= len(self._rows))).any() or (
            (np.diff(ids) <= 0) & (np.diff(prefix) == 0)
        ).any():
            raise _damaged("the words of n-grams")
        words = self._rows[ids]
        if (words == NONE).any():
            raise _damaged("words that are no unigrams")
        places = self._places(references, np.repeat(at, counts))
        own = self._floats[np.maximum(places, 0)]
        log_prob = np.where(places >= 0, own, references.view(np.float32))
        return self._level(prefix, words, log_prob, places), places

    def _places(self, references: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return the place that each reference names; -1 where it names none."""
        wide = references.astype(np.int64)
        is_history, is_far = wide % 2 != 0, wide < 0
        places = np.full(len(wide), NONE, np.int64)
        is_near = is_history & ~is_far
        places[is_near] = self._checked(at[is_near] + wide[is_near] // 2)
        numbers = -wide[is_history & is_far] // 2
        if (numbers >= len(self._tables.far)).any():
            raise _damaged("references")
        places[is_history & is_far] = self._checked(self._tables.far[numbers] - 1)
        return places

    def _checked(self, places: np.ndarray) -> np.ndarray:
        """Return places of entries, all of which are whole."""
        if ((places < 0) | (places > len(self._entries) - _HEAD)).any():
            raise _damaged("references")
        return places

    def _level(
        self,
        prefix: np.ndarray,
        words: np.ndarray,
        log_prob: np.ndarray,
        places: np.ndarray,
    ) -> Level:
        """Return a level, in decadic logarithms."""
        back_off = np.where(
            places >= 0, self._floats[np.maximum(places, 0) + 1], np.nan
        )
        log10 = log_prob.astype(np.float64) / math.log(10.0)
        if not (np.isfinite(log10).all() and np.isfinite(back_off[places >= 0]).all()):
            raise _damaged("probabilities")
        back_off = back_off.astype(np.float64) / math.log(10.0)
        return Level(prefix, words.astype(np.int32), log10, back_off)


def _damaged(what: str) -> UserError:
    """Return what is raised of a file whose parts do not fit each other."""
    return UserError(f"the file is damaged: {what}", remedy="make or copy it again")
