"""Kneser-Ney estimates against numbers of KenLM's lmplz (issues of kpu/kenlm).

Issue 405: eight sentences, `lmplz -o 2`, all 1-grams and some 2-grams of the ARPA file.
lmplz put the last word (`ski`) of the unigram counts in the wrong class when it counted
counts (issues 405 and 427; it says n1 = 4, n2 = 3 where 5 words have one left neighbour
and 2 have two), so that its unigram discounts are 0.4, 1.6, 1.4; given those, every
number must agree.

Issue 424: lmplz refuses four sentences: "1-gram discount out of range for adjusted
count 2: -0.5999999".

Issue 427: adjusted counts of three sentences, by hand.
"""

import numpy as np
import pytest
from reference.kneser_ney import table

from latflow.lang.ngram import (
    Discounts,
    _adjusted_counts,
    estimate,
)
from latflow.lang.ngram_counts import (
    count_ngrams,
    encode,
)

TEXT_405 = [
    line.split()
    for line in (
        "I went to", "I go to", "You went to", "You go to", "Joe went to", "Joe go to",
        "Anna went ski", "Anna went ski",
    )
]  # fmt: skip
UNIGRAMS_405 = {
    "<unk>": (-1.30103, 0.0),
    "</s>": (-1.1249387, 0.0),
    "I": (-1.0579919, -0.5228788),
    "went": (-0.6726411, -0.022929981),
    "to": (-1.1249387, -0.30103),
    "go": (-0.82390875, 0.0),
    "You": (-1.0579919, -0.5228788),
    "Joe": (-1.0579919, -0.5228788),
    "Anna": (-1.0579919, -0.059768215),
    "ski": (-1.0579919, -0.059768215),
}
BIGRAMS_405 = {
    "to </s>": -0.26962152,
    "ski </s>": -0.7123581,
    "<s> I": -0.9649993,
    "I went": -0.383262,
    "You went": -0.383262,
    "Joe went": -0.383262,
    "Anna went": -0.50341624,
}


def adjusted(text, order):
    """Word -> adjusted count, and the counts of all lengths."""
    corpus = encode(text)
    counts = _adjusted_counts(
        count_ngrams(corpus, order, skip_unknown=False), is_open=True
    )
    return dict(zip(corpus.words, counts[0].tolist(), strict=True)), counts


def test_probabilities_and_backoffs_equal_lmplz():
    _, counts = adjusted(TEXT_405, 2)
    bigrams = Discounts.of_counts(counts[1])
    assert bigrams is not None
    model = estimate(
        TEXT_405, 2, unknown_word="<unk>", discounts=[Discounts(0.4, 1.6, 1.4), bigrams]
    )
    grams = table(model)
    assert sum(len(gram) == 1 for gram in grams) == 11
    assert sum(len(gram) == 2 for gram in grams) == 16
    assert grams[("<s>",)][1] == pytest.approx(-0.059768215, abs=1e-6)
    for word, expected in UNIGRAMS_405.items():
        assert grams[(word,)] == pytest.approx(expected, abs=1e-6), word
    for text, expected in BIGRAMS_405.items():
        assert grams[tuple(text.split())][0] == pytest.approx(expected, abs=1e-6), text


def test_discounts_by_hand():
    words, counts = adjusted(TEXT_405, 2)
    assert words == {
        "<s>": 0, "</s>": 2, "I": 1, "went": 4, "to": 2, "go": 3, "You": 1, "Joe": 1,
        "Anna": 1, "ski": 1, "<unk>": 0,
    }  # fmt: skip
    # n1 to n4 are 5, 2, 1, 1 for words and 6, 7, 2, 0 for pairs
    y = 5 / 9
    assert Discounts.of_counts(counts[0]) == Discounts(
        pytest.approx(1 - 2 * y * 2 / 5),
        pytest.approx(2 - 3 * y * 1 / 2),
        pytest.approx(3 - 4 * y * 1 / 1),
    )
    assert Discounts.of_counts(counts[1]) == Discounts(
        pytest.approx(0.3), pytest.approx(2 - 3 * 0.3 * 2 / 7), 3.0
    )


def test_discounts_that_lmplz_refuses_fall_back(caplog):
    text = [
        line.split()
        for line in (
            "I'm Harry Potter",
            "Harry Potter is young  wizard",
            "Hermione Granger is Harry friend",
            "There are seven fantasy novels of Harry Potter",
        )
    ]
    _, counts = adjusted(text, 3)
    n1, n2, n3 = (int(np.sum(counts[0] == k)) for k in (1, 2, 3))
    y = n1 / (n1 + 2 * n2)
    assert 2 - 3 * y * n3 / n2 == pytest.approx(-0.5999999, abs=1e-6)
    assert Discounts.of_counts(counts[0]) is None
    estimate(text, 3)
    assert "discounts of 1-grams" in caplog.text


def test_adjusted_counts_by_hand():
    words, _ = adjusted([list("rot"), list("oar"), list("oat")], 2)
    assert words == {"<s>": 0, "</s>": 2, "r": 2, "o": 2, "t": 2, "a": 1, "<unk>": 0}
