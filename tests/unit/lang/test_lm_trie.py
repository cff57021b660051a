"""Language models to walk through: a model by hand, faults of models and grammars."""

import gzip
import math

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lang.arpa import read_arpa
from latflow.lang.lm_trie import LmTrie

LN10 = math.log(10.0)
WORD_IDS = {"<eps>": 0, "a": 1, "b": 2, "z": 3, "#0": 4, "<s>": 5, "</s>": 6}
# p(b | <s> a) is listed only behind `a`, so that it takes the weight of `<s> a`;
# `b a` has a weight but nothing is longer; `a b` has neither: it is not a state.
ARPA = r"""\data\
ngram 1=4
ngram 2=3
ngram 3=1

\1-grams:
-99 <s> -0.1
-1.0 </s>
-0.5 a -0.2
-0.7 b -0.3

\2-grams:
-0.4 <s> a -0.25
-0.6 a b
-0.8 b a -0.15

\3-grams:
-0.05 <s> a a

\end\
"""


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA)
    return path


def ids(text):
    return np.array([WORD_IDS[word] for word in text.split()], np.int32)


@pytest.mark.parametrize(
    ("text", "log10"),
    [
        ("", [-0.1 - 1.0]),
        ("a", [-0.4, -0.25 - 0.2 - 1.0]),
        ("a a", [-0.4, -0.05, -0.2 - 1.0]),  # `a a` is not listed: history is `a`
        ("a b", [-0.4, -0.25 - 0.6, -0.3 - 1.0]),
        ("b a b", [-0.1 - 0.7, -0.8, -0.15 - 0.6, -0.3 - 1.0]),
    ],
)
def test_costs_by_hand(arpa, text, log10):
    trie = LmTrie.load(arpa, WORD_IDS)
    found = trie.sentence_costs(ids(text))
    np.testing.assert_allclose(found, -LN10 * np.array(log10), rtol=1e-6)


def test_sizes(arpa):
    trie = LmTrie.load(arpa, WORD_IDS)
    assert trie.order == 3
    assert trie.num_arcs == 8
    assert trie.num_states == 6  # root, <s>, a, b, <s> a, b a


def test_a_packed_arpa_file_is_read(arpa, tmp_path):
    packed = tmp_path / "lm.arpa.gz"
    packed.write_bytes(gzip.compress(ARPA.encode()))
    costs = [LmTrie.load(file, WORD_IDS).sentence_costs(ids("a b")) for file in
             (arpa, packed)]  # fmt: skip
    assert costs[0].tolist() == costs[1].tolist()


def test_arrays_may_not_be_written_to(arpa, tmp_path):
    trie = LmTrie.load(arpa, WORD_IDS)
    trie.save(tmp_path / "lm.trie")
    for model in (trie, LmTrie.load(tmp_path / "lm.trie", WORD_IDS)):
        for array in model.arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_a_saved_model_takes_other_word_numbers(arpa, tmp_path):
    trie = LmTrie.load(arpa, WORD_IDS)
    trie.save(tmp_path / "lm.trie")
    other = LmTrie.load(tmp_path / "lm.trie", {"<eps>": 0, "b": 9, "a": 4})
    found = other.sentence_costs(np.array([4, 9], np.int32))
    assert found.tolist() == trie.sentence_costs(ids("a b")).tolist()


def test_a_file_that_is_cut_off_is_named(arpa, tmp_path):
    file = tmp_path / "lm.trie"
    LmTrie.load(arpa, WORD_IDS).save(file)
    raw = file.read_bytes()
    for length in (40, 200, len(raw) - 1):
        file.write_bytes(raw[:length])
        with pytest.raises(UserError, match=r"lm\.trie: .*cut off"):
            LmTrie.load(file, WORD_IDS)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="none.arpa: no such file"):
        LmTrie.load(tmp_path / "none.arpa", WORD_IDS)


@pytest.mark.parametrize("word", ["<s>", "</s>"])
def test_a_model_must_begin_and_end_sentences(tmp_path, word):
    file = tmp_path / "lm.arpa"
    other = "</s>" if word == "<s>" else "<s>"
    lines = ["\\data\\", "ngram 1=2", "\\1-grams:", f"-1 {other}", "-1 a", "\\end\\"]
    file.write_text("\n".join(lines))
    with pytest.raises(UserError, match=rf"lm\.arpa: the language model has no {word}"):
        LmTrie.load(file, WORD_IDS)


def test_an_unknown_word_is_named_where_there_is_no_unk(arpa):
    trie = LmTrie.load(arpa, WORD_IDS)
    assert trie.lacks(np.array([1, 2, 3, 99])).tolist() == [False, False, True, True]
    with pytest.raises(UserError, match="lacks the word 'z'"):
        trie.sentence_costs(ids("a z"))
    with pytest.raises(UserError, match="lacks the word 99"):
        trie.labels(np.array([1, 99], np.int32))


@pytest.mark.parametrize("unknown", ["<unk>", "<UNK>"])
def test_unknown_words_take_the_cost_of_unk_and_no_history(tmp_path, unknown):
    file = tmp_path / "lm.arpa"
    text = ARPA.replace("-0.7 b -0.3", f"-0.7 {unknown} -0.3")
    file.write_text(
        text.replace(" a b", f" a {unknown}").replace(" b a", f" {unknown} a")
    )
    trie = LmTrie.load(file, WORD_IDS)
    costs = trie.sentence_costs(ids("a b a"))
    # behind the unknown word nothing is known: not `<unk> a`, but the unigram
    expected = [-0.4, -0.25 - 0.6, -0.5, -0.2 - 1.0]
    np.testing.assert_allclose(costs, -LN10 * np.array(expected), rtol=1e-6)
    assert trie.sentence_costs(np.array([99], np.int32))[0] == pytest.approx(
        LN10 * (0.1 + 0.7)
    )


def grammar(arcs, final):
    """A graph of (source, input, output, cost, target); `final` by state."""
    table = np.array(arcs, float).reshape(-1, 5)
    table = table[np.argsort(table[:, 0], kind="stable")]
    begin = np.searchsorted(table[:, 0], np.arange(len(final) + 1))
    labels = [table[:, k].astype(np.int32) for k in (1, 2, 4)]
    return Graph.from_arrays(
        0, begin, labels[0], labels[1], table[:, 3], labels[2], np.array(final)
    )


def test_a_grammar_backs_off_only_where_a_word_is_not_listed():
    arcs = [(0, 1, 1, 2.0, 0), (0, 4, 0, 0.25, 1), (1, 1, 1, 0.5, 0), (1, 2, 2, 1, 1)]
    trie = LmTrie.from_graph(grammar(arcs, [np.inf, 3.0]))
    found = trie.sentence_costs(np.array([1, 2], np.int32))
    assert found.tolist() == [2.0, 1.25, 3.0]  # not 0.75 for the first word
    assert trie.sentence_costs(np.array([1], np.int32)).tolist() == [2.0, 3.25]


def test_a_grammar_may_have_no_way():
    trie = LmTrie.from_graph(grammar([(0, 1, 1, 2.0, 1), (1, 2, 2, 1, 0)], [0, np.inf]))
    assert trie.sentence_costs(np.array([1, 1], np.int32)).tolist() == [2.0] + 2 * [
        np.inf
    ]
    assert trie.sentence_costs(np.array([1], np.int32))[1] == np.inf


@pytest.mark.parametrize(
    ("arcs", "what"),
    [
        ([(0, 1, 1, 0, 0), (0, 1, 1, 0, 1)], "two arcs of one word"),
        ([(0, 4, 0, 0, 1), (0, 5, 0, 0, 1)], "two back-off arcs"),
        ([(0, 4, -3, 0, 1)], "the word -3"),
        ([(0, 4, 0, 0, 1), (1, 4, 0, 0, 0)], "form a cycle"),
        ([(0, 4, 0, 0, 0)], "form a cycle"),
    ],
)
def test_faulty_grammars_are_refused(arcs, what):
    with pytest.raises(UserError, match=what):
        LmTrie.from_graph(grammar(arcs, [0.0, 0.0]))


def test_a_long_chain_of_back_off_arcs_is_no_cycle():
    arcs = [(n, 4, 0, 1.0, n + 1) for n in range(8)]
    trie = LmTrie.from_graph(grammar([*arcs, (8, 1, 1, 0, 8)], [np.inf] * 8 + [0.5]))
    assert trie.sentence_costs(np.array([], np.int32)).tolist() == [8.5]


def test_a_grammar_is_not_saved(tmp_path):
    trie = LmTrie.from_graph(grammar([(0, 1, 1, 0, 0)], [0.0]))
    with pytest.raises(UserError, match="no words"):
        trie.save(tmp_path / "lm.trie")


def test_a_model_of_words_alone(tmp_path):
    file = tmp_path / "lm.arpa"
    text = "\\data\\\nngram 1=3\n\n\\1-grams:\n-99 <s>\n-1 </s>\n-0.5 a\n\n\\end\\\n"
    file.write_text(text)
    trie = LmTrie.from_model(read_arpa(file), WORD_IDS)
    assert (trie.num_states, trie.start) == (1, 0)
    np.testing.assert_allclose(
        trie.sentence_costs(ids("a a")), [0.5 * LN10, 0.5 * LN10, LN10], rtol=1e-6
    )
