"""The model of phrases against counting their occurrences."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latflow.lang.phrases import phrase_model, plain_model

WORDS = st.integers(1, 4)


def occurrences(words, phrase):
    starts = range(len(words) - len(phrase) + 1)
    return sum(words[k : k + len(phrase)] == phrase for k in starts)


@given(
    st.lists(WORDS, max_size=12),
    st.dictionaries(
        st.lists(WORDS, min_size=1, max_size=5).map(tuple),
        st.floats(0, 4, width=16),
        min_size=1,
        max_size=5,
    ),
)
def test_each_occurrence_of_a_phrase_is_worth_its_words(words, phrases):
    model = phrase_model(phrases, 5)
    expected = sum(
        boost * len(phrase) * occurrences(words, list(phrase))
        for phrase, boost in phrases.items()
    )
    cost = model.sentence_costs(np.array(words, np.int32)).sum()
    np.testing.assert_allclose(cost, -expected, atol=1e-4)


def test_words_of_a_phrase_are_favoured_before_it_is_whole():
    model = phrase_model({(1, 2, 3): 1.0}, 5)
    costs = model.sentence_costs(np.array([4, 1, 2, 4], np.int32))
    np.testing.assert_array_equal(costs, [0, -1, -1, 2, 0])


def test_without_phrases_all_costs_nothing():
    assert not plain_model(8).sentence_costs(np.array([1, 7, 3], np.int32)).any()
