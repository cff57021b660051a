"""A language model as flat arrays gives what the definition of back-off gives."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference.lm_rescore_naive import WORD_IDS, WORDS, in_files, random_lm

from latflow.lang.lm_trie import LmTrie

SEEDS = st.integers(0, 2**32 - 1)
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=8)


@given(SEEDS, st.integers(1, 5), st.sampled_from([0.1, 0.4, 0.9]), SENTENCES)
def test_every_word_costs_what_the_definition_says(seed, order, share, words):
    naive = random_lm(np.random.default_rng(seed), order, words=WORDS[:3], share=share)
    words = [word for word in words if word != "d"]
    model, _ = in_files(naive)
    ids = np.array([WORD_IDS[word] for word in words], np.int32)
    found = LmTrie.from_model(model, WORD_IDS).sentence_costs(ids)
    np.testing.assert_allclose(found, naive.costs(words), rtol=1e-5, atol=1e-5)
    rows = np.array([model.word_ids[word] for word in ["<s>", *words, "</s>"]])
    log_probs = model.log_probs(rows)[1:]
    np.testing.assert_allclose(found, -np.log(10) * log_probs, rtol=1e-5, atol=1e-5)


@given(SEEDS, st.integers(1, 5), SENTENCES)
def test_a_grammar_costs_what_its_model_costs(seed, order, words):
    naive = random_lm(np.random.default_rng(seed), order)
    _, graph = in_files(naive)
    ids = np.array([WORD_IDS[word] for word in words], np.int32)
    found = LmTrie.from_graph(graph).sentence_costs(ids).sum()
    # Kaldi pushes weights of states that it finds redundant: only sums are equal
    np.testing.assert_allclose(found, sum(naive.costs(words)), rtol=1e-5, atol=1e-4)


@given(SEEDS, st.integers(1, 4), SENTENCES)
def test_unknown_words_cost_what_unk_costs(seed, order, words):
    generator = np.random.default_rng(seed)
    naive = random_lm(generator, order, words=WORDS[:2], has_unknown=True)
    model, _ = in_files(naive)
    ids = np.array([WORD_IDS[word] for word in words], np.int32)
    found = LmTrie.from_model(model, WORD_IDS).sentence_costs(ids)
    np.testing.assert_allclose(found, naive.costs(words), rtol=1e-5, atol=1e-5)


@given(SEEDS, st.integers(1, 5))
def test_states_are_the_histories_that_matter(seed, order):
    naive = random_lm(np.random.default_rng(seed), order)
    model, _ = in_files(naive)
    trie = LmTrie.from_model(model, WORD_IDS)
    prefixes = {words[:-1] for words in naive.ngrams}
    histories = {
        words
        for words, (_, weight) in naive.ngrams.items()
        if words in prefixes or weight  # nothing to tell it from a shorter one else
    }
    assert trie.num_states == len(histories | {()})
    assert trie.num_arcs == len(naive.ngrams)
    backoff = trie.arrays.backoff_state
    assert backoff[0] == -1
    assert (backoff[1:] < np.arange(1, len(backoff))).all()  # shorter ones come first


@given(SEEDS, st.integers(1, 4))
def test_a_saved_model_is_the_same(seed, order):
    naive = random_lm(np.random.default_rng(seed), order, has_unknown=True)
    model, _ = in_files(naive)
    trie = LmTrie.from_model(model, WORD_IDS)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "lm.trie")
        trie.save(file)
        found = LmTrie.load(file, WORD_IDS)
        assert (found.order, found.start, found.end) == (
            trie.order,
            trie.start,
            trie.end,
        )
        assert found.words == trie.words
        assert found.label_of.tolist() == trie.label_of.tolist()
        for mapped, array in zip(found.arrays, trie.arrays, strict=True):
            assert mapped.dtype == array.dtype
            assert mapped.tolist() == array.tolist()
