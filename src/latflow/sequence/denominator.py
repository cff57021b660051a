"""The denominator: a decoding graph of a weak language model, for training.

Sequence training asks the network to prefer what was said to what might have been
said. What might have been said comes from a decoding graph whose language model is
deliberately weak - words of the training transcripts by their frequency, or in pairs -
so that the acoustic model must do the work, and so that wrong hypotheses are many.

Public: `make_denominator` (stage), `estimate_denominator`.

Source: Kaldi `steps/make_denlats.sh`, `utils/make_unigram_grammar.pl` (the unigram);
Woodland, Povey 2002, "Large scale discriminative training of hidden Markov models for
speech recognition" (weak language models).
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from latflow.files import atomic_output
from latflow.lang.arpa import NgramModel, write_arpa
from latflow.lang.composition import build_hclg, load_model
from latflow.lang.directory import Lang
from latflow.lang.grammar import FRAME, write_grammar
from latflow.lang.ngram import Discounts, estimate
from latflow.lang.perplexity import Perplexity, perplexity
from latflow.lang.texts import transcript_sentences

log = logging.getLogger(__name__)

_NO_DISCOUNT = Discounts(0.0, 0.0, 0.0)


def make_denominator(
    lang_dir: str | Path,
    texts: Sequence[str | Path],
    model_dir: str | Path,
    out_fst: str | Path,
    *,
    options: Mapping[str, Any],
) -> None:
    """Build the denominator graph (stage).

    The file is an aligned OpenFst `const` FST, like any decoding graph; beside it
    `<out_fst without .fst>.json` tells its size and its language model.

    Args:
        lang_dir: the lang directory.
        texts: manifests (`cuts.jsonl.gz`) of the training set.
        model_dir: folder with `final.mdl` and `tree`.
        out_fst: where to write.
        options: `workflow/schemas/denominator.yaml`, filled.

    Raises:
        UserError: the transcripts have no words, a file is missing, or the graph cannot
            be built, see `latflow.lang.composition.build_hclg`.
    """
    began = time.monotonic()
    lang = Lang.load(lang_dir)
    tree, transitions = load_model(model_dir)
    model, fit = estimate_denominator(texts, lang, order=options["order"])
    with tempfile.TemporaryDirectory() as folder:
        arpa, grammar = Path(folder, "denominator.arpa"), Path(folder, "G.fst")
        write_arpa(model, arpa)
        write_grammar(arpa, lang_dir, lang.word_ids, grammar)
        graph = build_hclg(
            lang_dir,
            grammar,
            tree,
            transitions,
            transition_scale=options["transition_scale"],
            self_loop_scale=options["self_loop_scale"],
        )
    target = Path(out_fst)
    graph.save(target, is_aligned=True)
    facts = {
        "states": graph.num_states,
        "arcs": graph.num_arcs,
        "final_states": graph.num_final_states,
        "transition_scale": options["transition_scale"],
        "self_loop_scale": options["self_loop_scale"],
        "lm_order": options["order"],
        "lm_words": len(model.words) - len(FRAME.intersection(model.words)),
        "lm_ngrams": [len(level.log_prob) for level in model.levels],
        "train_perplexity": round(fit.perplexity, 3),
        "train_words": fit.num_words,
        "train_sentences": fit.num_sentences,
        "seconds": round(time.monotonic() - began, 3),
    }
    with atomic_output(target.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    log.info(
        "denominator: %d-gram of %d words, perplexity %.2f on the training "
        "transcripts; %d states, %d arcs",
        facts["lm_order"],
        facts["lm_words"],
        facts["train_perplexity"],
        graph.num_states,
        graph.num_arcs,
    )


def estimate_denominator(
    texts: Sequence[str | Path], lang: Lang, *, order: int
) -> tuple[NgramModel, Perplexity]:
    """Estimate the weak language model.

    Words that the lexicon lacks count as its unknown word, as in training graphs, so
    that every transcript is among the graph's hypotheses. A unigram is the plain share
    of each word, as Kaldi has it; longer models are smoothed.

    Args:
        texts: manifests of the training set.
        lang: the lexicon's words.
        order: length of the longest n-grams.

    Returns:
        (the model, how well it expects the transcripts that it was made of).
    """

    def sentences() -> Iterator[list[str]]:
        for words in transcript_sentences(texts):
            yield [w if lang.is_known(w) else lang.oov_word for w in words]

    discounts = [_NO_DISCOUNT] if order == 1 else None
    model = estimate(sentences(), order, discounts=discounts)
    return model, perplexity(model, sentences())
