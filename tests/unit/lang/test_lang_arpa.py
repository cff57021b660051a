"""ARPA files: what is read, and every fault."""

import gzip

import numpy as np
import pytest
from reference.kneser_ney import table

from latflow.errors import UserError
from latflow.lang.arpa import Perplexity, perplexity, read_arpa, write_arpa

GOOD = r"""a comment before the model
\data\
ngram 1=4
ngram  2 = 3

\1-grams:
-99 <s> -0.30103
-0.5 </s>
-0.4 a -0.2
-0.6 b 0.1

\2-grams:
-0.1 <s> a
-0.2 a b
-0.3 b </s>

\end\
"""


def write(folder, text=GOOD, name="lm.arpa"):
    path = folder / name
    path.write_text(text)
    return path


def test_good_file(tmp_path):
    model = read_arpa(write(tmp_path))
    assert model.order == 2
    assert model.words == ["<s>", "</s>", "a", "b"]
    assert table(model) == {
        ("<s>",): (-99.0, -0.30103), ("</s>",): (-0.5, 0.0), ("a",): (-0.4, -0.2),
        ("b",): (-0.6, 0.1), ("<s>", "a"): (-0.1, 0.0), ("a", "b"): (-0.2, 0.0),
        ("b", "</s>"): (-0.3, 0.0),
    }  # fmt: skip


def test_compressed_file(tmp_path):
    path = tmp_path / "lm.arpa.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    assert table(read_arpa(path)) == table(read_arpa(write(tmp_path)))


def test_zero_probability_of_lmplz_is_read(tmp_path):
    grams = table(read_arpa(write(tmp_path, GOOD.replace("-99 <s>", "0 <s>"))))
    assert grams[("<s>",)] == (0.0, -0.30103)


def test_perplexity_by_hand(tmp_path):
    model = read_arpa(write(tmp_path))
    # <s> a: -0.1; a b: -0.2; b </s>: -0.3
    assert perplexity(model, [["a", "b"], []]) == Perplexity(
        1, 2, 0, pytest.approx(-0.6)
    )
    # <s> b: -0.30103 - 0.6; after an unknown word: </s> alone, -0.5
    score = perplexity(model, [["b", "x"]])
    assert score == Perplexity(1, 2, 1, pytest.approx(-0.30103 - 0.6 - 0.5))
    assert score.perplexity == pytest.approx(10 ** (1.40103 / 2))
    assert "1 OOVs" in str(score)
    assert np.isnan(perplexity(model, []).perplexity)


def test_long_texts_are_scored_in_parts(tmp_path, monkeypatch):
    model = read_arpa(write(tmp_path))
    text = [["a", "b"], ["b"], ["a"]] * 7
    whole = perplexity(model, text)
    monkeypatch.setattr("latflow.lang.arpa.CHUNK", 5)
    parts = perplexity(model, text)
    assert parts.log10_prob == pytest.approx(whole.log10_prob)
    assert (parts.num_words, parts.num_sentences) == (49 - 21, 21)


def test_ngrams_with_unlisted_words_or_histories_are_left_out(tmp_path, caplog):
    text = GOOD.replace("-0.2 a b", "-0.2 x b")
    model = read_arpa(write(tmp_path, text))
    assert len(model.levels[1].word) == 2
    assert "1 of 3 2-grams left out" in caplog.text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (r"\data", "data", "not an ARPA file"),
        (GOOD, "", "not an ARPA file"),
        ("ngram 1=4\nngram  2 = 3\n", "", "line 4: 'ngram 1=COUNT' expected here"),
        ("ngram 1=4\n", "", "'ngram 1=' expected here"),
        ("ngram 1=4", "ngram 1=5", "the header says 5 1-grams, the body has 4"),
        ("2 = 3", "2 = 4", "the header says 4 2-grams, the body has 3"),
        ("2 = 3", "2 = 2", "the header says 2 2-grams, the body has 3"),
        (r"\end" + "\\", "", "cut off"),
        (r"\2-grams:", "", "line 13: a log-probability is not a number"),
        (r"\2-grams:", r"\3-grams:", "\\2-grams: expected here"),
        ("ngram  2 = 3\n", "", "line 6: a back-off weight in the last section"),
        (r"\end", r"\3-grams:" + "\n\\end", "a section that the header lacks"),
        ("-0.2 a b", "-0.2 a", "is no 2-gram with its log-probability"),
        ("-0.2 a b", "-0.2 a b c d", "is no 2-gram with its log-probability"),
        ("-0.2 a b", "often a b", "a log-probability is not a number"),
        ("-0.2 a b", "0.2 a b", "positive or not finite"),
        ("-0.2 a b", "nan a b", "positive or not finite"),
        ("-0.2 a b", "inf a b", "positive or not finite"),
        ("-0.2 a b", "-0.2 a b -0.1", "line 14: a back-off weight in the last"),
        ("-0.4 a -0.2", "-0.4 a often", "a log-probability is not a number"),
        (
            "-0.3 b </s>",
            "-0.3 a b",
            "line 15: the 2-gram 'a b' comes twice, first in line 14",
        ),
        ("-0.6 b", "-0.6 a", "the 1-gram 'a' comes twice"),
    ],
)
def test_faults_name_the_file_and_the_line(tmp_path, old, new, message):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        read_arpa(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "ARPA" in (caught.value.remedy or "")


def test_writing_is_atomic(tmp_path):
    path = write(tmp_path)
    model = read_arpa(path)
    write_arpa(model, tmp_path / "out/lm.arpa")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["lm.arpa"]
    assert table(read_arpa(tmp_path / "out/lm.arpa")) == table(model)
