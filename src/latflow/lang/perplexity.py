"""How well a language model expects a text.

Public: `Perplexity`, `perplexity`.
Source of the conventions: SRILM `ngram -ppl`: words outside the vocabulary are counted,
but have no probability; histories end at them; sentence ends are predicted too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from latflow.lang.arpa import NgramModel
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START
from latflow.lang.ngram_counts import NONE

CHUNK = 1_000_000  # words that are scored at once


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
        model: the language model.
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
