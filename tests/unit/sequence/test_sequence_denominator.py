"""The denominator: a weak model of the training transcripts as a decoding graph."""

import json
from collections import Counter

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.graphs.denominator import estimate_denominator, make_denominator
from latflow.graphs.options import DenominatorOptions


def words_of(system):
    """Transcripts as the lexicon sees them."""
    transcripts = [
        [system.lang.words[n] for n in system.lang.words_to_ids(text)]
        for text in system.texts.values()
    ]
    assert any("<UNK>" in words for words in transcripts)  # the data have an OOV word
    return transcripts


def test_unigram_is_the_share_of_each_word(system):
    model, fit = estimate_denominator(
        [system.root / "cuts.jsonl.gz"], system.lang, order=1
    )
    transcripts = words_of(system)
    counts = Counter(word for words in transcripts for word in [*words, "</s>"])
    total = sum(counts.values())
    found = dict(zip(model.words, 10.0 ** model.levels[0].log_prob, strict=True))
    found.pop("<s>")
    assert found == pytest.approx({w: n / total for w, n in counts.items()})
    logs = [
        np.log10(counts[w] / total) for words in transcripts for w in [*words, "</s>"]
    ]
    assert fit.log10_prob == pytest.approx(sum(logs))
    assert fit.num_oov == 0


@pytest.mark.parametrize("order", [1, 2])
def test_stage_writes_graph_and_its_size(system, repository, tmp_path, order):
    make_denominator(
        system.root / "lang",
        system.root / "cuts.jsonl.gz",
        system.root / "model",
        tmp_path / "HCLG.fst",
        options=DenominatorOptions(order=order),
    )
    graph = Graph.load(tmp_path / "HCLG.fst")
    facts = json.loads((tmp_path / "HCLG.json").read_text())
    assert facts["states"] == graph.num_states
    assert facts["arcs"] == graph.num_arcs
    assert facts["lm_order"] == order == len(facts["lm_ngrams"])
    words = {word for words in words_of(system) for word in words}
    assert facts["lm_words"] == len(words)
    ids = {system.lang.word_ids[word] for word in words}
    assert set(np.unique(graph.olabel).tolist()) == {0, *ids}
    assert graph.ilabel.max() <= system.model.num_transition_ids


def test_pairs_of_words_expect_more_than_words(system):
    fits = [
        estimate_denominator([system.root / "cuts.jsonl.gz"], system.lang, order=n)[1]
        for n in (1, 2)
    ]
    assert fits[1].perplexity < fits[0].perplexity


def test_without_transcripts_there_is_none(system, tmp_path):
    (tmp_path / "cuts.jsonl").write_text('{"supervisions": [{"text": ""}]}\n')
    with pytest.raises(UserError, match="no words"):
        estimate_denominator([tmp_path / "cuts.jsonl"], system.lang, order=1)
