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

Source: Chen and Goodman 1998, "An empirical study of smoothing techniques for language
modeling" (TR-10-98), section 3 and equation 26; Heafield et al. 2013, "Scalable
modified Kneser-Ney language model estimation"; the conventions and the fallback are
those of KenLM's `lmplz --interpolate_unigrams --discount_fallback`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.lang.arpa import Level, NgramModel
from latflow.lang.arpa_file import LOG_ZERO
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START
from latflow.lang.ngram_counts import (
    START_ID,
    Corpus,
    NgramTable,
    count_ngrams,
    encode,
)

log = logging.getLogger(__name__)


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
    corpus = encode(
        sentences,
        unknown_word=unknown_word if unknown_word is not None else "<unk>",
        vocabulary=vocabulary,
        min_count=min_counts[0],
    )
    return estimate_of_corpus(
        corpus,
        order,
        is_open=unknown_word is not None,
        min_counts=min_counts,
        discounts=discounts,
        background=background,
    )


def estimate_of_corpus(
    corpus: Corpus,
    order: int,
    *,
    is_open: bool,
    min_counts: Sequence[int] = (1,),
    discounts: Sequence[Discounts] | None = None,
    background: Mapping[str, float] | None = None,
) -> NgramModel:
    """Estimate an n-gram model of a text that is read already, see `estimate`.

    Args:
        is_open: whether the model has n-grams of the unknown word.
    """
    if order < 1:
        raise UserError(f"n-grams of length {order}", remedy="ask for 1 or more")
    least = [*min_counts, *[min_counts[-1]] * order][:order]
    if least != sorted(least):
        raise UserError(
            f"min_counts {least} fall with length",
            remedy="demand of long n-grams at least what is demanded of short ones",
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


def with_unknown_words(known: NgramModel, whole: NgramModel) -> NgramModel:
    """Return a model that costs known words what it did, and has unknown ones, too.

    So its probabilities add up to more than 1 where unknown words are listed: it is for
    searches that leave these out until they get words to put there.

    Args:
        known: estimated with a closed vocabulary.
        whole: of the same text, where the rest counts as an unknown word, the last one.
    """
    unknown = len(whole.words) - 1
    levels: list[Level] = []
    is_open = np.zeros(1, bool)
    for length, level in enumerate(whole.levels):
        is_open = is_open[level.prefix] | (level.word == unknown)
        log_prob, backoff = level.log_prob.copy(), level.log_backoff
        own = known.levels[length] if length < known.order else None
        if own is not None:
            log_prob[~is_open] = own.log_prob
        if backoff is not None:
            backoff = backoff.copy()
            weights = None if own is None else own.log_backoff
            backoff[~is_open] = np.nan if weights is None else weights
        levels.append(Level(level.prefix, level.word, log_prob, backoff))
    return NgramModel(whole.words, levels)


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
