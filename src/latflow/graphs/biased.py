"""Decoding graphs biased to transcripts: other words are possible, but less likely.

Neighbours are taken together until they have some words (`batches`). The language model
of a batch is an n-gram model of its transcripts by Kneser and Ney's smoothing with
little discount; its recursion ends in the shares of the corpus' most frequent words, so
that a search can leave the transcript where the speech differs, and come back.

Time grows linearly with the corpus; memory is that of a batch and of the vocabulary.

Source: Kaldi `steps/cleanup/make_biased_lm_graphs.sh`, `make_biased_lms.py` and
`internal/make_one_biased_lm.py`, with the smoothing of `latflow.lang.ngram`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from threading import Lock

from latflow.fst.graph import Graph
from latflow.graphs.hclg import HclgComposer
from latflow.graphs.options import BiasedGraphOptions, GraphOptions
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.grammar import grammar_graph
from latflow.lang.lexicon import SENTENCE_END
from latflow.lang.ngram import Discounts, estimate

# Kaldi's discount of longer n-grams. That of single words gives the top words a share.
_LONGER = Discounts(0.3, 0.3, 0.3)
_WORDS = Discounts(0.5, 0.5, 0.5)


class BiasedGraphs:
    """Makes the decoding graphs of batches of transcripts; safe to share.

    Args:
        texts: all transcripts of the corpus, for the shares of its words.
        lang: the language directory; words outside it count as its unknown word.
        tree: the tree of the system.
        model: its transition model.
        scales: of the transition probabilities.
        options: of the language models.

    Raises:
        UserError: a file is missing.
    """

    def __init__(
        self,
        texts: Iterable[str],
        lang: Lang,
        tree: ContextDependency,
        model: TransitionModel,
        scales: GraphOptions,
        options: BiasedGraphOptions,
    ) -> None:
        self.lang = lang
        self._order = options.order
        self._lock = Lock()  # kaldifst holds Python's own most of the time anyway
        self._composer = HclgComposer(lang, tree, model, scales)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(self.words(text))
            counts[SENTENCE_END] += 1
        ends = counts.pop(SENTENCE_END, 1)
        # by count, then by name: the order of the corpus decides nothing
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        self._background = dict(ranked[: options.num_top_words]) | {SENTENCE_END: ends}

    def words(self, text: str) -> list[str]:
        """Return the words of a transcript as the graphs have them."""
        known, unknown = self.lang.is_known, self.lang.oov_word
        return [word if known(word) else unknown for word in text.split()]

    def graph(self, texts: Sequence[str]) -> Graph:
        """Return the decoding graph of a batch: transition-ids to words.

        Raises:
            UserError: the transcripts have no words, or the graph cannot be made.
        """
        sentences = [self.words(text) for text in texts]
        vocabulary = dict.fromkeys(self._background)
        for words in sentences:
            vocabulary |= dict.fromkeys(words)
        model = estimate(
            sentences,
            self._order,
            vocabulary=vocabulary,
            unknown_word=self.lang.oov_word,
            discounts=[_WORDS, *[_LONGER] * (self._order - 1)],
            background=self._background,
        )
        grammar = grammar_graph(model, self.lang.word_ids)
        with self._lock:
            return self._composer.compose(grammar.to_fst())


def batches(texts: Iterable[str], min_words: int) -> list[range]:
    """Divide utterances into runs of neighbours that have enough words.

    Args:
        texts: transcripts; one without words counts as a word.
        min_words: least number of words of a run, where there are two or more; the last
            one has what is left, too.
    """
    bounds, total, end = [0], 0, 0
    for end, text in enumerate(texts, start=1):
        total += max(1, len(text.split()))
        if total >= min_words:
            bounds.append(end)
            total = 0
    bounds[max(1, len(bounds) - 1) :] = [end]
    return [range(*pair) for pair in pairwise(bounds)]
