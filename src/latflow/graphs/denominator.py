"""The denominator: a decoding graph of a weak language model, for training.

Sequence training asks the network to prefer the transcript to its competitors. These
come from a decoding graph whose language model is deliberately weak (words of the
training transcripts by their frequency, or in pairs), so that the acoustic model must
do the work, and so that wrong hypotheses are many.

Source: Kaldi `steps/make_denlats.sh`, `utils/make_unigram_grammar.pl` (the unigram);
Woodland, Povey 2002, "Large scale discriminative training of hidden Markov models for
speech recognition" (weak language models).
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from latflow.graphs.hclg import build_hclg, load_model, save_graph
from latflow.graphs.options import DenominatorOptions
from latflow.lang.arpa import NgramModel, Perplexity, perplexity, write_arpa
from latflow.lang.directory import Lang
from latflow.lang.grammar import FRAME, write_grammar
from latflow.lang.ngram import (
    Discounts,
    estimate,
)
from latflow.lang.ngram_counts import transcript_sentences

log = logging.getLogger(__name__)

_NO_DISCOUNT = Discounts(0.0, 0.0, 0.0)


def make_denominator(
    lang_dir: Path,
    cuts: Path,
    model_dir: Path,
    graph: Path,
    *,
    options: DenominatorOptions,
) -> None:
    """Build the denominator graph (stage).

    Args:
        lang_dir: the lang directory.
        cuts: manifest (`cuts.jsonl.gz`) of the training set.
        model_dir: folder with `final.mdl` and `tree`.
        graph: where to write, see `latflow.graphs.hclg.save_graph`.
        options: order of the language model, scales.

    Raises:
        UserError: the transcripts have no words, a file is missing, or the graph cannot
            be built, see `latflow.graphs.hclg.build_hclg`.
    """
    began = time.monotonic()
    lang = Lang.load(lang_dir)
    model, fit = estimate_denominator([cuts], lang, order=options.order)
    with tempfile.TemporaryDirectory() as folder:
        arpa, grammar = Path(folder, "denominator.arpa"), Path(folder, "G.fst")
        write_arpa(model, arpa)
        write_grammar(arpa, lang_dir, lang.word_ids, grammar)
        hclg = build_hclg(lang_dir, grammar, *load_model(model_dir), options)
    facts = {
        "lm_order": options.order,
        "lm_words": len(model.words) - len(FRAME.intersection(model.words)),
        "lm_ngrams": [len(level.log_prob) for level in model.levels],
        "train_perplexity": round(fit.perplexity, 3),
        "train_words": fit.num_words,
        "train_sentences": fit.num_sentences,
    }
    save_graph([hclg], graph, options, facts, began)
    log.info(
        "denominator: %d-gram of %d words, perplexity %.2f on the training transcripts",
        facts["lm_order"],
        facts["lm_words"],
        facts["train_perplexity"],
    )


def estimate_denominator(
    cuts: Sequence[str | Path], lang: Lang, *, order: int
) -> tuple[NgramModel, Perplexity]:
    """Estimate the weak language model.

    Words that the lexicon lacks count as its unknown word, as in training graphs, so
    that every transcript is among the graph's hypotheses. A unigram is the plain share
    of each word, as Kaldi has it; longer models are smoothed.

    Args:
        cuts: manifests of the training set.
        lang: the lexicon's words.
        order: length of the longest n-grams.

    Returns:
        (the model, how well it expects the transcripts that it was made of).
    """

    def sentences() -> Iterator[list[str]]:
        for words in transcript_sentences(cuts):
            yield [w if lang.is_known(w) else lang.oov_word for w in words]

    discounts = [_NO_DISCOUNT] if order == 1 else None
    model = estimate(sentences(), order, discounts=discounts)
    return model, perplexity(model, sentences())
