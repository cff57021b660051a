"""N-grams of a text, counted: sentences, their words as integers, tables of counts.

An n-gram is the pair (id of its first n-1 words, last word), which packs into one
integer, so that all n-grams of a length are counted by one `numpy.unique` over the
positions of the text.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.lang.arpa import NONE, pack
from latflow.lang.lexicon import RESERVED_WORDS, SENTENCE_END, SENTENCE_START
from latflow.text_files import read_json_lines, read_lines

START_ID, END_ID = 0, 1
_FORBIDDEN = frozenset(RESERVED_WORDS)


def text_sentences(
    path: str | Path, forms: WordForms | None = None
) -> Iterator[list[str]]:
    """Yield the words of each line of a text file.

    Args:
        path: the file.
        forms: spells the words; None leaves them unchanged, in Unicode's normal form
            NFC.

    Raises:
        UserError: the file is missing or no text; a line has a reserved symbol.
    """
    for number, line in read_lines(path):
        words = unicodedata.normalize("NFC", line).split()
        if not _FORBIDDEN.isdisjoint(words):
            raise _reserved(words, f"line {number}: ").at(file=path)
        yield words if forms is None else forms.words(line)


def transcript_sentences(cuts: Iterable[str | Path]) -> Iterator[list[str]]:
    """Yield the words of each transcript of Lhotse cut manifests (`cuts.jsonl.gz`).

    The lines are read as plain JSON: building Lhotse's objects takes ten times as long.

    Raises:
        UserError: a file is missing, or a line is not a cut.
    """

    def make(cut: dict[str, Any]) -> list[list[str]]:
        return [
            str(item.get("text") or "").split() for item in cut.get("supervisions", ())
        ]

    for path in cuts:
        remedy = "prepare the corpus again"
        for sentences in read_json_lines(path, make, "a cut in JSON", remedy):
            yield from sentences


@dataclass(frozen=True)
class Corpus:
    """A text as integers.

    Attributes:
        words: id -> word; 0 is `<s>`, 1 is `</s>`, the last is the unknown word.
        ids: int32[T], each sentence as `<s> words </s>`, one after the other.
        num_sentences: number of sentences.
        num_unknown: number of words that are not in the vocabulary.
    """

    words: list[str]
    ids: np.ndarray
    num_sentences: int
    num_unknown: int

    @property
    def unknown_id(self) -> int:
        """Id of the unknown word."""
        return len(self.words) - 1


def encode(
    sentences: Iterable[Sequence[str]],
    *,
    unknown_word: str = "<unk>",
    vocabulary: Iterable[str] | None = None,
    min_count: int = 1,
) -> Corpus:
    """Turn sentences into integers.

    Args:
        sentences: each a sequence of words; empty ones are left out.
        unknown_word: name of the word that stands for all others. Where the text has
            it, it counts as unknown too.
        vocabulary: all words that there are; None takes those of the text.
        min_count: words that the text has less often become unknown; applies where
            `vocabulary` is None.

    Raises:
        UserError: the text has no words, or none of the given vocabulary, or has a
            reserved symbol (`<s>`, `#0`, ...).
    """
    given = vocabulary is not None
    head = [SENTENCE_START, SENTENCE_END]
    closed = dict.fromkeys(chain(head, vocabulary or ()))
    closed.pop(unknown_word, None)
    table = {word: number for number, word in enumerate(closed)}
    ids = array("i")
    num_sentences = 0
    for words in sentences:
        if not words:
            continue
        if not _FORBIDDEN.isdisjoint(words):
            raise _reserved(words)
        num_sentences += 1
        ids.append(START_ID)
        if given:
            ids.extend([table.get(word, NONE) for word in words])
        else:
            ids.extend(
                [
                    NONE if word == unknown_word else table.setdefault(word, len(table))
                    for word in words
                ]
            )
        ids.append(END_ID)
    if not num_sentences:
        raise UserError(
            "the text for the language model has no words",
            remedy="check the text or the transcripts",
        )
    names = list(table)
    flat = np.frombuffer(ids, dtype=np.int32).copy()
    if not given and min_count > 1:
        names, flat = _drop_rare(names, flat, min_count)
    unknown = flat == NONE
    if given and unknown.sum() == len(flat) - 2 * num_sentences:
        raise UserError(
            "no word of the text for the language model is in the vocabulary",
            remedy="check case and language of the text and of the lexicon",
        )
    flat[unknown] = len(names)
    return Corpus([*names, unknown_word], flat, num_sentences, int(unknown.sum()))


def _reserved(words: Sequence[str], where: str = "") -> UserError:
    """Return the error about a reserved symbol in a sentence."""
    symbol = next(word for word in words if word in RESERVED_WORDS)
    return UserError(
        f"{where}the text has the reserved symbol {symbol} in: {' '.join(words)[:80]}",
        remedy="remove it; sentence ends are added by themselves",
    )


def _drop_rare(
    names: list[str], ids: np.ndarray, min_count: int
) -> tuple[list[str], np.ndarray]:
    """Give rare words the id NONE and close the gaps that they leave."""
    counts = np.bincount(ids[ids >= 0], minlength=len(names))
    kept = counts >= min_count
    kept[[START_ID, END_ID]] = True
    new_ids = np.where(kept, np.cumsum(kept) - 1, NONE).astype(np.int32)
    new_ids = np.append(new_ids, np.int32(NONE))  # entry -1: what was unknown before
    return [name for name, keep in zip(names, kept, strict=True) if keep], new_ids[ids]


@dataclass(frozen=True)
class NgramTable:
    """The distinct n-grams of one length, sorted by (prefix, word).

    Attributes:
        prefix: int64[N], row of the first n-1 words in the table of that length (0 for
            single words).
        word: int32[N], last word.
        suffix: int64[N], row of the last n-1 words in the table of that length.
        count: int64[N], occurrences in the text.
        starts: bool[N], whether the first word is `<s>`.
    """

    prefix: np.ndarray
    word: np.ndarray
    suffix: np.ndarray
    count: np.ndarray
    starts: np.ndarray


def count_ngrams(corpus: Corpus, order: int, *, skip_unknown: bool) -> list[NgramTable]:
    """Count the n-grams of lengths 1 to `order`.

    N-grams do not reach over sentence ends. Time: O(T log T) for each length; memory: a
    few integers for each position of the text.

    Args:
        skip_unknown: leave out n-grams (n > 1) with the unknown word.

    Returns:
        A table for each length. The first one has a row for every word, also for those
        that the text lacks, in the order of ids.
    """
    words = corpus.ids
    num_words = len(corpus.words)
    everything = np.arange(num_words)
    zeros = np.zeros(num_words, dtype=np.int64)
    tables = [
        NgramTable(
            zeros,
            everything.astype(np.int32),
            zeros,
            np.bincount(words, minlength=num_words),
            everything == START_ID,
        )
    ]
    ending_here = words.astype(np.int64)  # row of the n-gram that ends at each position
    if skip_unknown:
        ending_here[words == corpus.unknown_id] = NONE
    for _ in range(2, order + 1):
        table, ending_here = _extend(words, ending_here, tables[-1], num_words)
        tables.append(table)
    return tables


def _extend(
    words: np.ndarray, ending_here: np.ndarray, shorter: NgramTable, num_words: int
) -> tuple[NgramTable, np.ndarray]:
    """Count n-grams one word longer."""
    positions = 1 + np.flatnonzero(
        (ending_here[:-1] >= 0) & (ending_here[1:] >= 0) & (words[1:] != START_ID)
    )
    keys = pack(ending_here[positions - 1], words[positions], num_words)
    distinct, first, rows, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    prefix, word = np.divmod(distinct, num_words)
    suffix = ending_here[positions[first]]
    longer = np.full(len(words), NONE, dtype=np.int64)
    longer[positions] = rows
    table = NgramTable(
        prefix, word.astype(np.int32), suffix, counts, shorter.starts[prefix]
    )
    return table, longer
