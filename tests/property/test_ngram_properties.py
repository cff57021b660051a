"""Language models: sums, the slow twin, files, and scoring."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reference.kneser_ney import KneserNey, backoff_log_prob, table

from latflow.lang.arpa import perplexity, read_arpa, write_arpa
from latflow.lang.ngram import estimate

sentences = st.lists(
    st.lists(st.sampled_from("abcd"), min_size=0, max_size=7), min_size=1, max_size=9
).filter(any)


@st.composite
def settings_of_models(draw):
    order = draw(st.integers(1, 4))
    least = sorted(draw(st.lists(st.integers(1, 3), min_size=1, max_size=order)))
    vocabulary = draw(st.sampled_from([None, "abc", "abcde"]))
    unknown = draw(st.sampled_from([None, "<unk>"]))
    return {
        "order": order,
        "vocabulary": vocabulary,
        "unknown": unknown,
        "min_counts": least,
    }


def both(text, options):
    """The model and its twin."""
    known = set(options["vocabulary"] or "abcd")
    assume(any(word in known for line in text for word in line))
    model = estimate(
        text,
        options["order"],
        vocabulary=options["vocabulary"],
        unknown_word=options["unknown"],
        min_counts=options["min_counts"],
    )
    twin = KneserNey(
        text,
        options["order"],
        vocabulary=options["vocabulary"],
        unknown=options["unknown"],
        min_counts=options["min_counts"],
    )
    return model, twin


def histories(words, order):
    """All histories that are short enough for the order."""
    for length in range(order):
        yield from itertools.product(sorted(words - {"</s>"}), repeat=length)
        if length:
            for rest in itertools.product(sorted(words - {"</s>"}), repeat=length - 1):
                yield ("<s>", *rest)


@given(sentences, settings_of_models())
def test_probabilities_sum_to_one_and_equal_the_slow_twin(text, options):
    model, twin = both(text, options)
    grams = table(model)
    assert set(model.words) - {"<s>"} == twin.words
    for history in histories(twin.words, min(options["order"], 3)):
        probs = [10 ** backoff_log_prob(grams, w, history) for w in sorted(twin.words)]
        assert sum(probs) == pytest.approx(1.0, abs=1e-9)
        expected = [twin.prob(word, history) for word in sorted(twin.words)]
        assert probs == pytest.approx(expected, abs=1e-9)


@given(sentences)
def test_fourgram_histories_sum_to_one_too(text):
    model, twin = both(
        text, {"order": 4, "vocabulary": None, "unknown": None, "min_counts": [1]}
    )
    grams = table(model)
    seen = {g[:-1] for g in grams if len(g) == 4}
    for history in seen:
        total = sum(10 ** backoff_log_prob(grams, w, history) for w in twin.words)
        assert total == pytest.approx(1.0, abs=1e-9)


@given(sentences, settings_of_models())
def test_arpa_files_round_trip(tmp_path_factory, text, options):
    model, _ = both(text, options)
    path = tmp_path_factory.mktemp("arpa") / "lm.arpa"
    write_arpa(model, path)
    again = read_arpa(path)
    assert again.words == model.words
    first, second = table(model), table(again)
    assert set(first) == set(second)
    np.testing.assert_allclose(list(second.values()), list(first.values()), atol=6e-8)


@given(sentences, sentences, settings_of_models())
def test_vectorised_scores_equal_the_backoff_rule(text, other, options):
    model, _ = both(text, options)
    grams = table(model)
    total, known, oov = 0.0, 0, 0
    for line in filter(None, other):
        words = [w if (w,) in grams else None for w in line]
        history = ("<s>",)
        for word in [*words, "</s>"]:
            if word is None:
                oov, history = oov + 1, ()
                continue
            recent = history[-(options["order"] - 1) :] if options["order"] > 1 else ()
            total += backoff_log_prob(grams, word, recent)
            known += 1
            history = (*history, word)
    score = perplexity(model, other)
    assert score.log10_prob == pytest.approx(total, abs=1e-9)
    assert score.num_oov == oov
    assert score.num_words - oov + score.num_sentences == known


@given(sentences)
def test_order_of_sentences_does_not_matter(text):
    first = table(estimate(text, 3))
    second = table(estimate(text[::-1], 3))
    assert first.keys() == second.keys()
    for gram, values in first.items():
        assert second[gram] == pytest.approx(values, abs=1e-12)
