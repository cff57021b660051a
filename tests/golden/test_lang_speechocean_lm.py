"""Estimated models against the given `lm.arpa` of speechocean (Kneser-Ney trigram)."""

import pytest
from reference.kneser_ney import backoff_log_prob, table

from latflow.lang.arpa import perplexity, read_arpa
from latflow.lang.ngram import estimate
from latflow.lang.ngram_counts import text_sentences


@pytest.fixture(scope="module")
def given(corpora):
    return read_arpa(corpora / "speechocean/lm.arpa")


@pytest.fixture(scope="module")
def text(corpora):
    return list(text_sentences(corpora / "speechocean/lm_text.txt"))


@pytest.fixture(scope="module")
def unseen(corpora):
    return [line[1:] for line in text_sentences(corpora / "speechocean/test/text")]


def test_the_same_ngrams_are_found(given, text):
    ours = estimate(text, 3)
    assert [len(level.word) for level in ours.levels] == [1887, 9132, 13293]
    assert set(table(ours)) == set(table(given))


def test_perplexity_is_close_to_the_given_models(given, text, unseen):
    ours = estimate(text, 3)
    own, reference = perplexity(ours, unseen), perplexity(given, unseen)
    assert own.num_oov == reference.num_oov == 130
    assert own.num_words == 2452
    # modified discounts, interpolated: better than one discount with back-off
    assert 0.85 * reference.perplexity < own.perplexity < reference.perplexity
    assert perplexity(ours, text).perplexity < perplexity(given, text).perplexity


def test_vectorised_scores_of_a_given_model_equal_the_backoff_rule(given, unseen):
    grams = table(given)
    sentences = [line for line in unseen if all(w in given.word_ids for w in line)]
    total = 0.0
    for line in sentences:
        framed = ["<s>", *line, "</s>"]
        total += sum(
            backoff_log_prob(grams, word, tuple(framed[max(0, i - 1) : i + 1]))
            for i, word in enumerate(framed[1:])
        )
    assert perplexity(given, sentences).log10_prob == pytest.approx(total, abs=1e-6)
