"""N-gram language models by interpolated modified Kneser-Ney smoothing.

For a history h of n-1 words and a word w, with h' the history without its first word,

    p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h .) + g(h) p(w | h')
    g(h)     = sum over w of D(c(h w)) / c(h .)

so that probabilities sum to one by construction. c is the number of occurrences for the
longest n-grams and for those that begin with `<s>`; for shorter ones it is the number
of distinct words to their left (Kneser and Ney's continuation counts). The recursion
ends in the uniform distribution over the vocabulary, or in one that is given, which
lends unseen words their share. For each length

    D(k) = k - (k + 1) Y n(k+1) / n(k)    with Y = n1 / (n1 + 2 n2),

for k = 1, 2 and 3 (which serves larger counts too), from the numbers n1 to n4 of
n-grams with counts 1 to 4. Small or artificial texts can lack those numbers, or give a
D(k) outside [0, k]; that length then takes D = (0.5, 1, 1.5), and the log says so.

Sentences are framed by one `<s>` and one `</s>`. `<s>` is only ever a history: it has
no probability (log10 -99 in the file) and no share in the vocabulary. With an open
vocabulary the unknown word is a word like others (as in KenLM); with a closed one (as
in SRILM without `-unk`) n-grams that contain it are not counted, and it has no
probability.

Counting: words become integers, and an n-gram the pair (id of its first n-1 words, last
word), which packs into one integer, so that all n-grams of a length are counted by one
`numpy.unique` over the positions of the text.

Source: Chen and Goodman 1998, "An empirical study of smoothing techniques for language
modeling" (TR-10-98), section 3 and equation 26; Heafield et al. 2013, "Scalable
modified Kneser-Ney language model estimation"; the conventions and the fallback are
those of KenLM's `lmplz --interpolate_unigrams --discount_fallback`.
"""

from __future__ import annotations

import logging
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.files import read_json_lines, read_lines
from latflow.lang.arpa import NONE, Level, NgramModel, pack
from latflow.lang.arpa_file import LOG_ZERO
from latflow.lang.lexicon import RESERVED_WORDS, SENTENCE_END, SENTENCE_START

log = logging.getLogger(__name__)

START_ID, END_ID = 0, 1
_FORBIDDEN = frozenset(RESERVED_WORDS)


@dataclass(frozen=True)
class Discounts:
    """Discounts of counts of 1, of 2, and of 3 or more.

    Attributes:
        one: off a count of one, in [0, 1].
        two: off a count of two, in [0, 2].
        three: off larger counts, in [0, 3].
    """

    one: float = 0.5
    two: float = 1.0
    three: float = 1.5

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Discounts | None:
        """Estimate in closed form from the counts of all n-grams of a length.

        Returns:
            The discounts; None if the counts allow no estimate.
        """
        n1, n2, n3, n4 = (int((counts == k).sum()) for k in range(1, 5))
        if not (n1 and n2 and n3):
            return None
        y = n1 / (n1 + 2 * n2)
        found = cls(1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        limits = ((found.one, 1), (found.two, 2), (found.three, 3))
        return found if all(0 <= d <= most for d, most in limits) else None

    def of(self, counts: np.ndarray) -> np.ndarray:
        """Discount of each count; 0 for a count of 0."""
        table = np.array([0.0, self.one, self.two, self.three])
        return table[np.minimum(counts, 3)]


def estimate(
    sentences: Iterable[Sequence[str]],
    order: int,
    *,
    vocabulary: Iterable[str] | None = None,
    unknown_word: str | None = None,
    min_counts: Sequence[int] = (1,),
    discounts: Sequence[Discounts] | None = None,
    background: Mapping[str, float] | None = None,
) -> NgramModel:
    """Estimate an n-gram model.

    Args:
        sentences: each a sequence of words; empty ones are left out.
        order: length of the longest n-grams.
        vocabulary: all words that there are; None takes those of the text.
        unknown_word: a name opens the vocabulary: what is outside counts as this word.
            None closes it.
        min_counts: for each length, how often the text must have an n-gram that the
            model keeps; the last value holds for longer ones. The first is about words:
            rarer ones become unknown (without effect if `vocabulary` is given). What
            lost n-grams weighed goes to shorter histories. Must not fall with length.
        discounts: for each length, in place of estimates; sizes are then not logged.
        background: the distribution that the recursion ends in, not normalized; words
            that it lacks have no share. None is the uniform one.

    Raises:
        UserError: the order is below 1, the text has no words, or `min_counts` fall
            with length.
    """
    if order < 1:
        raise UserError(f"n-grams of length {order}", remedy="ask for 1 or more")
    least = [*min_counts, *[min_counts[-1]] * order][:order]
    if least != sorted(least):
        raise UserError(
            f"min_counts {least} fall with length",
            remedy="demand of long n-grams at least what is demanded of short ones",
        )
    is_open = unknown_word is not None
    corpus = encode(
        sentences,
        unknown_word=unknown_word if unknown_word is not None else "<unk>",
        vocabulary=vocabulary,
        min_count=least[0],
    )
    tables = count_ngrams(corpus, order, skip_unknown=not is_open)
    counts = _adjusted_counts(tables, is_open=is_open)
    kept = [table.count >= low for table, low in zip(tables, least, strict=True)]
    kept[0][:] = True
    if discounts is None:
        discounts = _estimate_discounts(counts)
        _log_sizes(corpus, kept, discounts)
    given = background or dict.fromkeys(corpus.words, 1.0)
    shares = np.array([given.get(word, 0.0) for word in corpus.words])
    shares[START_ID] = 0.0
    if not is_open:
        shares[-1] = 0.0
    unigrams = _unigram_probs(counts[0], discounts[0], shares / shares.sum())
    return _smooth(corpus, tables, counts, kept, discounts, unigrams, is_open=is_open)


def uniform(words: Sequence[str]) -> NgramModel:
    """Return a loop of equally likely words, of which the sentence end is one."""
    names = [SENTENCE_START, SENTENCE_END, *words]
    log_prob = np.full(len(names), -np.log10(len(names) - 1))
    log_prob[START_ID] = LOG_ZERO
    return NgramModel(names, [_unigrams(log_prob, None)])


def _adjusted_counts(tables: list[NgramTable], *, is_open: bool) -> list[np.ndarray]:
    """Return the counts c of the formula, int64[N] for each length; 0 for `<s>`."""
    counts = []
    for shorter, longer in zip(tables, [*tables[1:], None], strict=True):
        if longer is None:
            adjusted = shorter.count.copy()
        else:
            adjusted = np.bincount(longer.suffix, minlength=len(shorter.word))
            adjusted = np.where(shorter.starts, shorter.count, adjusted)
        counts.append(adjusted)
    counts[0][START_ID] = 0
    if not is_open:
        counts[0][-1] = 0
    return counts


def _estimate_discounts(counts: list[np.ndarray]) -> list[Discounts]:
    """Return the discounts for each length, from its counts of counts."""
    result = []
    for length, adjusted in enumerate(counts, start=1):
        found = Discounts.of_counts(adjusted)
        if found is None:
            found = Discounts()
            log.warning(
                "too little text to estimate the discounts of %d-grams: taking %s",
                length,
                found,
            )
        result.append(found)
    return result


def _log_sizes(
    corpus: Corpus, kept: list[np.ndarray], discounts: Sequence[Discounts]
) -> None:
    """Tell what the model is made of."""
    log.info(
        "text: %d sentences, %d words, of them %d unknown",
        corpus.num_sentences,
        len(corpus.ids) - 2 * corpus.num_sentences,
        corpus.num_unknown,
    )
    for length, (mask, discount) in enumerate(
        zip(kept, discounts, strict=True), start=1
    ):
        log.info("%d-grams: %d kept of %d; %s", length, mask.sum(), len(mask), discount)


def _smooth(
    corpus: Corpus,
    tables: list[NgramTable],
    counts: list[np.ndarray],
    kept: list[np.ndarray],
    discounts: Sequence[Discounts],
    prob: np.ndarray,
    *,
    is_open: bool,
) -> NgramModel:
    """Apply the formula from short to long n-grams; `prob` is that of words."""
    size = len(corpus.words) if is_open else corpus.unknown_id
    levels = [_unigrams(_log10(prob[:size]), None)]
    new_row = np.arange(len(prob))  # row of a kept n-gram among those kept
    for table, count, mask, discount in zip(
        tables[1:], counts[1:], kept[1:], discounts[1:], strict=True
    ):
        if not mask.any():  # no sentence is that long, or nothing was kept
            break
        # `backoff` belongs to the shorter n-grams, which are the histories here
        total = np.bincount(table.prefix, weights=count, minlength=len(prob))
        taken = np.where(mask, np.minimum(discount.of(count), count), count)
        spared = np.bincount(table.prefix, weights=taken, minlength=len(prob))
        is_history = total > 0
        backoff = np.divide(spared, total, out=np.ones_like(total), where=is_history)
        own = np.divide(
            count - taken,
            total[table.prefix],
            out=np.zeros(len(count)),
            where=is_history[table.prefix],
        )
        log_backoff = np.where(is_history, _log10(backoff), np.nan)
        rows = np.flatnonzero(new_row >= 0)[: len(levels[-1].word)]
        levels[-1] = levels[-1].with_backoff(log_backoff[rows])
        prob = own + backoff[table.prefix] * prob[table.suffix]
        levels.append(
            Level(new_row[table.prefix[mask]], table.word[mask], _log10(prob[mask]))
        )
        new_row = np.where(mask, np.cumsum(mask) - 1, -1)
    return NgramModel(corpus.words[:size], levels)


def _unigram_probs(
    count: np.ndarray, discount: Discounts, background: np.ndarray
) -> np.ndarray:
    """Return probabilities without history: discounted counts, the rest shared.

    Args:
        count: int64[W].
        discount: of them.
        background: float64[W], how the rest is shared; sums to 1.
    """
    taken = np.minimum(discount.of(count), count)
    total = count.sum()
    if total == 0:  # every known word stands between unknown ones
        return background
    return (count - taken) / total + taken.sum() / total * background


def _unigrams(log_prob: np.ndarray, log_backoff: np.ndarray | None) -> Level:
    """Return the level of single words."""
    size = len(log_prob)
    words = np.arange(size, dtype=np.int32)
    return Level(np.zeros(size, dtype=np.int64), words, log_prob, log_backoff)


def _log10(values: np.ndarray) -> np.ndarray:
    """Return the decadic logarithm; LOG_ZERO for 0."""
    result = np.full(values.shape, LOG_ZERO)
    np.log10(values, out=result, where=values > 0)
    return result


def text_sentences(
    path: str | Path, forms: WordForms | None = None
) -> Iterator[list[str]]:
    """Yield the words of each line of a text file.

    Args:
        path: the file.
        forms: spells the words; None leaves them as they are, in Unicode's normal form
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
        UserError: a file is missing, or a line is no cut.
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
