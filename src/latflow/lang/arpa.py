r"""Back-off n-gram models in memory, and as ARPA files (`latflow.lang.arpa_file`).

A model is a list of levels, one for each length of n-grams. An n-gram is a row of its
level: the row of its first n-1 words in the level below, and its last word; rows are
sorted by that pair, so that looking many n-grams up is one binary search. All
logarithms are decadic, as in the file format.

Of a text that is scored, words outside the vocabulary are counted, but have no
probability; histories end at them; sentence ends are predicted too.

Source: SRILM, `ngram -ppl`; Kaldi `lm/arpa-file-parser.cc`.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from latflow.files import atomic_output
from latflow.lang.arpa_file import ArpaFile, refuse
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START

log = logging.getLogger(__name__)

NONE = -1  # no such n-gram, or no such word
CHUNK = 1_000_000  # words that are scored at once


@dataclass(frozen=True)
class Level:
    """All n-grams of one length, sorted by (prefix, word).

    Attributes:
        prefix: int64[N], row of the first n-1 words in the level below; 0 for words.
        word: int32[N], last word.
        log_prob: float64[N], log10 of the probability of the last word.
        log_backoff: float64[N], log10 of the back-off weight, NaN where the n-gram is
            no history; None at the top level.
    """

    prefix: np.ndarray
    word: np.ndarray
    log_prob: np.ndarray
    log_backoff: np.ndarray | None = None

    def with_backoff(self, log_backoff: np.ndarray) -> Level:
        """Return the same with back-off weights."""
        return replace(self, log_backoff=log_backoff)

    def backoff_of(self, rows: np.ndarray) -> np.ndarray:
        """Return back-off weights of rows; 0 where the row is NONE or has none."""
        if self.log_backoff is None or not len(self.log_backoff):
            return np.zeros(len(rows))
        return np.where(rows == NONE, 0.0, np.nan_to_num(self.log_backoff[rows]))


@dataclass(frozen=True)
class NgramModel:
    """A back-off n-gram model.

    Attributes:
        words: id -> word.
        levels: the n-grams of lengths 1, 2, ...; row i of the first is word i.
    """

    words: list[str]
    levels: list[Level]

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return len(self.levels)

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """Word -> id."""
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def _keys(self) -> list[np.ndarray]:
        """For each level the packed (prefix, word) of its rows, ascending."""
        size = len(self.words)
        return [pack(level.prefix, level.word, size) for level in self.levels]

    def rows(self, length: int, prefix: np.ndarray, word: np.ndarray) -> np.ndarray:
        """Find n-grams.

        Args:
            prefix: int64[N], their prefixes' rows in the level below; NONE finds none.
            word: int[N], their last words; NONE finds none.

        Returns:
            int64[N], rows in the level; NONE where the model lacks the n-gram.
        """
        if length == 1:
            return word.astype(np.int64)
        keys = self._keys[length - 1]
        if not len(keys):
            return np.full(len(word), NONE, dtype=np.int64)
        wanted = pack(prefix, word, len(self.words))
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = (keys[found] == wanted) & (prefix >= 0) & (word >= 0)
        return np.where(hit, found, NONE)

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """Score a text.

        Args:
            ids: int[T], sentences one after the other, each begun by `<s>`; NONE stands
                for a word outside the vocabulary.

        Returns:
            float64[T], log10 p(word | all words before it in its sentence); NaN where
            the word is outside the vocabulary, and at `<s>`.
        """
        start = self.word_ids.get("<s>", NONE)
        is_start = ids == start
        ending = [ids.astype(np.int64)]  # rows of the n-grams that end at each position
        result = np.full(len(ids), np.nan)
        known = (ids != NONE) & ~is_start
        result[known] = self.levels[0].log_prob[ids[known]]
        for length in range(2, self.order + 1):
            before = np.append(NONE, ending[-1][:-1])
            rows = self.rows(length, before, ids)
            rows[is_start] = NONE
            longer = self.levels[length - 1].log_prob
            backoff = self.levels[length - 2].backoff_of(before)
            hit = rows != NONE
            result = result + np.where(is_start, 0.0, backoff)
            result[hit] = longer[rows[hit]]
            ending.append(rows)
        return result


# -- reading ------------------------------------------------------------------------


def read_arpa(path: str | Path) -> NgramModel:
    """Read a model from an ARPA file.

    N-grams whose words or whose prefix the file lacks are left out and counted in the
    log, as Kaldi's `arpa2fst` does.

    Raises:
        UserError: see `arpa_entries`; an n-gram comes twice.
    """
    body = ArpaFile(Path(path))
    columns: list[_Columns] = []
    word_ids: dict[str, int] = {}
    for _, (log_prob, words, backoff) in body:
        while len(words) > len(columns):
            columns.append(_Columns())
        if len(words) == 1:
            word_ids.setdefault(words[0], len(word_ids))
        column = columns[-1]
        column.log_prob.append(log_prob)
        column.backoff.append(backoff)
        column.ids.extend([word_ids.get(word, NONE) for word in words])
    columns += [_Columns() for _ in body.counts[len(columns) :]]
    model = NgramModel(list(word_ids), [])
    columns.reverse()
    while columns:  # each is let go when its level is made
        _add_level(model, columns.pop(), len(model.levels) + 1, Path(path))
    model.levels[-1] = replace(model.levels[-1], log_backoff=None)
    return model


class _Columns:
    """Growing columns of one level."""

    def __init__(self) -> None:
        self.ids = array("i")
        self.log_prob = array("d")
        self.backoff = array("d")


def _add_level(model: NgramModel, column: _Columns, length: int, file: Path) -> None:
    """Sort the n-grams of one length and add them to the model."""
    ids = np.frombuffer(column.ids, dtype=np.int32).reshape(-1, length)
    rows = ids[:, 0].astype(np.int64)
    for n in range(2, length):
        rows = model.rows(n, rows, ids[:, n - 1])
    prefix = np.zeros_like(rows) if length == 1 else rows
    good = (prefix >= 0) & (ids[:, -1] >= 0)
    if not good.all():
        log.warning(
            "%s: %d of %d %d-grams left out: their words or histories are not listed",
            file, (~good).sum(), len(good), length,
        )  # fmt: skip
    keys = pack(prefix, ids[:, -1], len(model.words))[good]
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        at = int(order[np.flatnonzero(np.diff(keys[order]) == 0)[0]])
        _refuse_twice(file, [model.words[i] for i in ids[good][at]])
    model.levels.append(
        Level(
            prefix[good][order],
            ids[:, -1][good][order],
            np.frombuffer(column.log_prob)[good][order],
            np.frombuffer(column.backoff)[good][order],
        )
    )
    model.__dict__.pop("_keys", None)  # it was made without this level


def _refuse_twice(file: Path, words: list[str]) -> NoReturn:
    """Refuse a file for an n-gram that comes twice; find where."""
    lines = [n for n, (_, found, _) in ArpaFile(file) if found == words]
    refuse(
        file,
        f"line {lines[1]}: the {len(words)}-gram {' '.join(words)!r} comes twice, "
        f"first in line {lines[0]}",
    )


# -- writing ------------------------------------------------------------------------


def write_arpa(model: NgramModel, path: str | Path) -> None:
    """Write a model as ARPA text, log10 values with seven digits after the point."""
    with (
        atomic_output(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        stream.writelines(_arpa_lines(model))


def _arpa_lines(model: NgramModel) -> Iterator[str]:
    """Return the lines of the file."""
    yield "\\data\\\n"
    for length, level in enumerate(model.levels, start=1):
        yield f"ngram {length}={len(level.word)}\n"
    texts: list[str] = []
    for length, level in enumerate(model.levels, start=1):
        yield f"\n\\{length}-grams:\n"
        texts = _texts(model.words, level, texts)
        for log_prob, text, backoff in zip(
            level.log_prob.tolist(), texts, _backoffs(level), strict=True
        ):
            end = "" if math.isnan(backoff) else f"\t{backoff:.7f}"
            yield f"{log_prob:.7f}\t{text}{end}\n"
    yield "\n\\end\\\n"


def _texts(words: list[str], level: Level, shorter: list[str]) -> list[str]:
    """Return the n-grams of a level, words joined by blanks."""
    last = [words[number] for number in level.word.tolist()]
    if not shorter:
        return last
    first = (shorter[row] for row in level.prefix.tolist())
    return [f"{text} {word}" for text, word in zip(first, last, strict=True)]


def _backoffs(level: Level) -> Iterable[float]:
    """Return the back-off weights of a level's rows, NaN where there is none."""
    if level.log_backoff is None:
        return [math.nan] * len(level.word)
    return level.log_backoff.tolist()


def pack(prefix: np.ndarray, word: np.ndarray, num_words: int) -> np.ndarray:
    """Return one int64 for each (prefix row, word), ordered like the pairs."""
    return prefix.astype(np.int64) * num_words + word


@dataclass(frozen=True)
class Perplexity:
    """The score of a text.

    Attributes:
        num_sentences: sentences with at least one word.
        num_words: words, sentence ends not counted.
        num_oov: words of them that the model does not know.
        log10_prob: sum over the known words and the sentence ends.
    """

    num_sentences: int
    num_words: int
    num_oov: int
    log10_prob: float

    @property
    def perplexity(self) -> float:
        """10 to the mean of -log10 p over known words and sentence ends."""
        count = self.num_words - self.num_oov + self.num_sentences
        return 10.0 ** (-self.log10_prob / count) if count else float("nan")

    def __str__(self) -> str:
        return (
            f"{self.num_sentences} sentences, {self.num_words} words, "
            f"{self.num_oov} OOVs, log10 probability {self.log10_prob:.2f}, "
            f"perplexity {self.perplexity:.2f}"
        )


def perplexity(model: NgramModel, sentences: Iterable[Sequence[str]]) -> Perplexity:
    """Score a text; streamed, so that it may be of any length.

    Args:
        sentences: each a sequence of words; empty ones are left out.
    """
    num_sentences = num_words = num_oov = 0
    total = 0.0
    for ids, count in _chunks(model, sentences):
        log_probs = model.log_probs(ids)
        num_sentences += count
        num_words += len(ids) - 2 * count
        num_oov += int((ids == NONE).sum())
        total += float(np.nansum(log_probs))
    return Perplexity(num_sentences, num_words, num_oov, total)


def _chunks(
    model: NgramModel, sentences: Iterable[Sequence[str]]
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield (ids of framed sentences, number of sentences) of parts of the text."""
    known = dict(model.word_ids)
    start, end = (known.pop(w, NONE) for w in (SENTENCE_START, SENTENCE_END))
    ids, count = array("i"), 0
    for words in sentences:
        if not words:
            continue
        ids.append(start)
        ids.extend([known.get(word, NONE) for word in words])
        ids.append(end)
        count += 1
        if len(ids) >= CHUNK:
            yield np.array(ids), count
            ids, count = array("i"), 0
    if count:
        yield np.array(ids), count
