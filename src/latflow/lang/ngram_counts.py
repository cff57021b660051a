"""Counting n-grams with sorted integer arrays.

Words become integers, and an n-gram the pair (id of its first n-1 words, last word),
which packs into one integer: counting all n-grams of a length is then one
`numpy.unique` over the positions of the text, without a Python object for each n-gram.

Public: `Corpus`, `encode`, `NgramTable`, `count_ngrams`, `pack`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from latflow.errors import UserError
from latflow.lang.lexicon import RESERVED_WORDS, SENTENCE_END, SENTENCE_START

START_ID = 0
END_ID = 1
NONE = -1  # no such n-gram


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
    forbidden = set(RESERVED_WORDS)
    ids = array("i")
    num_sentences = 0
    for words in sentences:
        if not words:
            continue
        if not forbidden.isdisjoint(words):
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


def _reserved(words: Sequence[str]) -> UserError:
    """The error about a reserved symbol in a sentence."""
    symbol = next(word for word in words if word in RESERVED_WORDS)
    return UserError(
        f"the text for the language model has the reserved symbol {symbol} in: "
        f"{' '.join(words)[:80]}",
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


def pack(prefix: np.ndarray, word: np.ndarray, num_words: int) -> np.ndarray:
    """One int64 for each (prefix row, word), ordered like the pairs."""
    return prefix.astype(np.int64) * num_words + word


def count_ngrams(corpus: Corpus, order: int, *, skip_unknown: bool) -> list[NgramTable]:
    """Count the n-grams of lengths 1 to `order`.

    N-grams do not reach over sentence ends. Time: O(T log T) for each length; memory: a
    few integers for each position of the text.

    Args:
        corpus: the text.
        order: largest length.
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
