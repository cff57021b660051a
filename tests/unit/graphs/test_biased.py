"""Graphs biased to transcripts: batches of neighbours, and what the graphs prefer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.graphs import canonical

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.graphs.biased import BiasedGraphs, batches
from latflow.graphs.options import BiasedGraphOptions, GraphOptions
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.arpa import write_arpa
from latflow.lang.directory import Lang
from latflow.lang.grammar import grammar_graph, write_grammar
from latflow.lang.ngram import Discounts, estimate
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang

TEXTS = ["a b c", "b a d", "c c a b"]
SMALL = [Discounts(0.5, 0.5, 0.5), *[Discounts(0.3, 0.3, 0.3)] * 3]


@given(st.lists(st.integers(0, 7)), st.integers(1, 20))
def test_batches_hold_every_utterance_once_and_words_enough(lengths, least):
    texts = ["w " * n for n in lengths]
    found = batches(texts, least)
    assert [u for batch in found for u in batch] == list(range(len(texts)))
    sizes = [sum(max(1, lengths[u]) for u in batch) for batch in found]
    if len(found) > 1:
        assert min(sizes) >= least
        assert max(sizes[:-1]) < least + 7
        assert sizes[-1] < 2 * least + 7


@pytest.fixture(scope="module")
def lang(tmp_path_factory):
    """Five words of one phone each."""
    folder = tmp_path_factory.mktemp("biased")
    lines = (f"{word} {word.upper()}\n" for word in "abcde")
    (folder / "lexicon.txt").write_text("<UNK> SPN\n" + "".join(lines))
    options = LangOptions(position_dependent_phones=False, num_silence_states=3)
    make_lang(folder / "lexicon.txt", folder / "lang", options=options)
    return Lang.load(folder / "lang")


@pytest.fixture(scope="module")
def model(lang):
    numbers = sorted(n for n in lang.phones if n in lang.topology.phones)
    topology = Topology.standard(numbers, [], 3, 3)
    sets = [[n] for n in numbers]
    tree = ContextDependency.monophone(sets, topology.pdf_class_counts())
    return tree, TransitionModel.from_tree(tree, topology)


def biased(lang, model, texts, **options):
    scales = GraphOptions()
    return BiasedGraphs(texts, lang, *model, scales, BiasedGraphOptions(**options))


def words_of(graph, lang):
    """Words that a graph can put out."""
    return {lang.words[w] for w in np.unique(graph.olabel).tolist() if w}


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_grammar_of_a_model_in_memory_is_that_of_its_file(lang, tmp_path, order):
    model = estimate([text.split() for text in TEXTS], order, discounts=SMALL[:order])
    write_arpa(model, tmp_path / "lm.arpa")
    write_grammar(tmp_path / "lm.arpa", lang.folder, lang.word_ids, tmp_path / "G.fst")
    ours = canonical(grammar_graph(model, lang.word_ids), digits=3)
    kaldi = canonical(Graph.load(tmp_path / "G.fst"), digits=3)
    np.testing.assert_allclose(ours[0], kaldi[0], atol=2e-3)
    np.testing.assert_allclose(ours[1], kaldi[1], atol=2e-3)


def test_background_has_the_share_that_discounts_leave():
    texts = [text.split() for text in TEXTS]
    background = {"a": 3.0, "e": 6.0, "</s>": 1.0}
    vocabulary = dict.fromkeys("abcde")
    model = estimate(
        texts, 1, vocabulary=vocabulary, discounts=SMALL[:1], background=background
    )
    share = 10.0 ** model.levels[0].log_prob[1:]
    assert share.sum() == pytest.approx(1.0)
    # 13 words and ends of 5 kinds, each half a count less
    spared = 5 * 0.5 / 13
    assert share[model.word_ids["e"] - 1] == pytest.approx(spared * 0.6)
    assert share[model.word_ids["a"] - 1] == pytest.approx(2.5 / 13 + spared * 0.3)
    assert share[model.word_ids["b"] - 1] == pytest.approx(2.5 / 13)


def test_graphs_have_the_words_of_transcripts_and_the_top_words(lang, model):
    graphs = biased(lang, model, [*TEXTS, "e", "a strange"], num_top_words=2)
    assert words_of(graphs.graph(["c d"]), lang) == {"a", "b", "c", "d"}
    assert words_of(graphs.graph(["e zzz"]), lang) == {"a", "b", "e", "<UNK>"}
    none = biased(lang, model, TEXTS, num_top_words=0)
    assert words_of(none.graph(["c"]), lang) == {"c"}


def test_a_batch_without_words_is_refused(lang, model):
    with pytest.raises(UserError, match="no words"):
        biased(lang, model, TEXTS).graph(["", ""])


def test_a_graph_does_not_depend_on_those_made_before(lang, model):
    used, fresh = biased(lang, model, TEXTS), biased(lang, model, TEXTS)
    used.graph(TEXTS[:1])
    first, second = used.graph(TEXTS[1:]), fresh.graph(TEXTS[1:])
    assert first.arcs.tolist() == second.arcs.tolist()
