r"""Back-off n-gram models in memory, and as ARPA files.

A model is a list of levels, one for each length of n-grams. An n-gram is a row of its
level: the row of its first n-1 words in the level below, and its last word; rows are
sorted by that pair, so that looking many n-grams up is one binary search. All
logarithms are decadic, as in the file format.

ARPA format: `\data\`, lines `ngram N=COUNT`, for each N a section `\N-grams:` with
lines `log10(probability) WORDS [log10(back-off weight)]`, and `\end\`. A back-off
weight that is missing is 0. Files may be compressed (`.gz`).

Of a text that is scored, words outside the vocabulary are counted, but have no
probability; histories end at them; sentence ends are predicted too.

Public: `NgramModel`, `Level`, `read_arpa`, `write_arpa`, `arpa_entries`, `perplexity`.
Source: SRILM, ngram-format(5) and `ngram -ppl`; Kaldi `lm/arpa-file-parser.cc`.
"""

from __future__ import annotations

import logging
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output, read_lines
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START

log = logging.getLogger(__name__)

NONE = -1  # no such n-gram, or no such word
LOG_ZERO = -99.0  # stands for log10(0) in ARPA files
CHUNK = 1_000_000  # words that are scored at once
_COUNT = re.compile(r"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})")
_SECTION = re.compile(r"\\(\d{1,9})-grams:")
_REMEDY = "give an n-gram model in ARPA format (SRILM, KenLM, lmplz -o N --arpa)"


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


def arpa_entries(path: str | Path) -> Iterator[tuple[float, list[str], float]]:
    """Yield (log10 probability, words, log10 back-off or NaN) of each n-gram of a file.

    The n-grams come in the order of the file, short ones first.

    Raises:
        UserError: the file is missing, not ARPA, cut off, or its header's counts are
            not those of its body; a line is garbled.
    """
    file = Path(path)
    lines = ((n, line.strip()) for n, line in read_lines(file))
    lines = ((n, line) for n, line in lines if line)
    counts, (number, line) = _header(lines, file)
    for length, expected in enumerate(counts, start=1):
        match = _SECTION.fullmatch(line)
        if match is None or int(match[1]) != length:
            _refuse(file, f"line {number}: \\{length}-grams: expected here")
        found = 0
        is_top = length == len(counts)
        for number, line in lines:
            if line.startswith("\\") and (
                line == "\\end\\" or _SECTION.fullmatch(line)
            ):
                break
            found += 1
            yield _entry(line, number, length, file, is_top=is_top)
        else:
            _refuse(file, "the file is cut off: \\end\\ is missing")
        if found != expected:
            _refuse(
                file,
                f"the header says {expected} {length}-grams, the body has {found}",
            )
    if line != "\\end\\":
        _refuse(file, f"line {number}: {line} is a section that the header lacks")


def _header(
    lines: Iterator[tuple[int, str]], file: Path
) -> tuple[list[int], tuple[int, str]]:
    """Return the counts of the header, and the first line after it."""
    for _, line in lines:
        if line == "\\data\\":
            break
    else:
        _refuse(file, "not an ARPA file: there is no line \\data\\")
    counts: list[int] = []
    for number, line in lines:
        match = _COUNT.fullmatch(line)
        if match is None:
            if not counts:
                break
            return counts, (number, line)
        if int(match[1]) != len(counts) + 1:
            _refuse(file, f"line {number}: 'ngram {len(counts) + 1}=' expected here")
        counts.append(int(match[2]))
    _refuse(file, "the header after \\data\\ has no counts, or the file ends there")


def _entry(
    line: str, number: int, length: int, file: Path, *, is_top: bool
) -> tuple[float, list[str], float]:
    """Take one n-gram line apart."""
    fields = line.split()
    extra = len(fields) - length - 1
    if extra not in (0, 1):
        _refuse(file, f"line {number} is no {length}-gram with its log-probability")
    if extra and is_top:
        _refuse(
            file,
            f"line {number}: a back-off weight in the last section that the header "
            "lists",
        )
    try:
        log_prob = float(fields[0])
        backoff = float(fields[-1]) if extra else math.nan
    except ValueError:
        _refuse(file, f"line {number}: a log-probability is not a number")
    if not -math.inf < log_prob <= 0.0 or (extra and not math.isfinite(backoff)):
        _refuse(file, f"line {number}: a log-probability is positive or not finite")
    return log_prob, fields[1 : length + 1], backoff


def read_arpa(path: str | Path) -> NgramModel:
    """Read a model from an ARPA file.

    N-grams whose words or whose prefix the file lacks are left out and counted in the
    log, as Kaldi's `arpa2fst` does.

    Raises:
        UserError: see `arpa_entries`; an n-gram comes twice.
    """
    columns: list[_Columns] = []
    word_ids: dict[str, int] = {}
    for log_prob, words, backoff in arpa_entries(path):
        if len(words) > len(columns):
            columns.append(_Columns())
        if len(words) == 1:
            word_ids.setdefault(words[0], len(word_ids))
        column = columns[len(words) - 1]
        column.log_prob.append(log_prob)
        column.backoff.append(backoff)
        column.ids.extend([word_ids.get(word, NONE) for word in words])
    model = NgramModel(list(word_ids), [])
    for length, column in enumerate(columns, start=1):
        _add_level(model, column, length, Path(path))
    if model.levels:
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
        words = " ".join(model.words[i] for i in ids[good][at])
        _refuse(file, f"the {length}-gram {words!r} comes twice")
    model.levels.append(
        Level(
            prefix[good][order],
            ids[:, -1][good][order],
            np.frombuffer(column.log_prob)[good][order],
            np.frombuffer(column.backoff)[good][order],
        )
    )
    model.__dict__.pop("_keys", None)  # it was made without this level


def _refuse(file: Path, what: str) -> NoReturn:
    raise UserError(what, file=file, remedy=_REMEDY)


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
