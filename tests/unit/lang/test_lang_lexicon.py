"""Reading lexica: formats, stress, probabilities, and every fault."""

import gzip

import pytest

from latflow.errors import UserError
from latflow.lang.lexicon import base_phone, mark_of, read_lexicon, read_new_words


def write(folder, text, name="lexicon.txt"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def plain(lexicon):
    return [(e.word, e.probability, " ".join(e.phones)) for e in lexicon.entries]


def test_alternatives_tabs_comments_and_case_are_kept(tmp_path):
    path = write(tmp_path, ";;; from a dictionary\nYes\tY EH S\n\nYES Y E S\nYes Y A\n")
    assert plain(read_lexicon(path)) == [
        ("Yes", 1.0, "Y EH S"),
        ("YES", 1.0, "Y E S"),
        ("Yes", 1.0, "Y A"),
    ]
    assert read_lexicon(path).words == ["YES", "Yes"]


def test_words_beyond_ascii_are_sorted_by_bytes(tmp_path):
    path = write(tmp_path, "ÄH e\nZOO z u\nשלום S a l o m\n")
    assert read_lexicon(path).words == ["ZOO", "ÄH", "שלום"]


def test_compressed_lexicon(tmp_path):
    path = tmp_path / "lexicon.txt.gz"
    path.write_bytes(gzip.compress(b"A a\n"))
    assert plain(read_lexicon(path)) == [("A", 1.0, "a")]


def test_probabilities_are_found_and_max_normalized(tmp_path):
    path = write(tmp_path, "THE 0.6 DH AH\nTHE 0.3 DH IY\nA 0.5 AH\n")
    assert plain(read_lexicon(path)) == [
        ("THE", 1.0, "DH AH"),
        ("THE", 0.5, "DH IY"),
        ("A", 1.0, "AH"),
    ]
    assert plain(read_lexicon(path, max_normalize=False))[1][1] == 0.3


def test_probabilities_may_be_stated_or_denied(tmp_path):
    path = write(tmp_path, "ONE 1 2\nTWO 1 3\n")
    assert plain(read_lexicon(path))[0] == ("ONE", 1.0, "2")
    assert plain(read_lexicon(path, has_probabilities=False))[0] == ("ONE", 1.0, "1 2")


def test_stress_is_stripped_and_duplicates_merge_with_the_larger_probability(tmp_path):
    path = write(tmp_path, "A 0.5 AH0\nA 1.0 AH1\nA 0.8 EY1\n")
    assert plain(read_lexicon(path, strip_stress=True)) == [
        ("A", 1.0, "AH"),
        ("A", 0.8, "EY"),
    ]


def test_stress_marks_are_digits_at_the_end():
    assert [base_phone(p) for p in ("AH0", "AH", "2", "a12", "e2:")] == [
        "AH", "AH", "2", "a", "e2:",
    ]  # fmt: skip
    assert [mark_of(p) for p in ("AH0", "AH", "2")] == ["0", "", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lexicon is empty"),
        (";;; only a comment\n", "lexicon is empty"),
        ("ONE W AH N\nTWO\n", "line 2: word TWO has no pronunciation"),
        ("ONE 0.5 W\nTWO 0.5\n", "line 2: word TWO has no pronunciation"),
        ("<eps> A\n", "line 1: <eps> is a reserved symbol"),
        ("<eps> SIL\n", "lexicon is empty"),
        ("#0 A\n", "line 1: #0 is a reserved symbol"),
        ("<s> A\n", "line 1: <s> is a reserved symbol"),
        ("A a\n</s> A\n", "line 2: </s> is a reserved symbol"),
        ("ONE W #1\n", "word ONE: #1 is a reserved symbol, not a phone"),
        ("ONE W <eps>\n", "word ONE: <eps> is a reserved symbol, not a phone"),
    ],
)
def test_faults_name_file_line_and_remedy(tmp_path, text, message):
    path = write(tmp_path, text)
    options = {"has_probabilities": True} if "0.5" in text else {}
    with pytest.raises(UserError) as caught:
        read_lexicon(path, **options)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("value", ["0.0", "1.5", "-1", "often", "nan"])
def test_probability_out_of_range_is_refused(tmp_path, value):
    path = write(tmp_path, f"ONE {value} W AH N\n")
    with pytest.raises(UserError, match=f"line 1: word ONE: {value} is not a prob"):
        read_lexicon(path, has_probabilities=True)


def test_missing_file_and_other_encodings_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_lexicon(tmp_path / "none.txt")
    path = tmp_path / "latin.txt"
    path.write_bytes("ONE W\nÄH e\n".encode("latin-1"))
    with pytest.raises(UserError, match="line 2 is not UTF-8"):
        read_lexicon(path)


def test_lists_of_words_may_lack_phones(tmp_path, caplog):
    path = write(tmp_path, "KAZOO:\nLUTE\nword\nHARP HH AA\n")
    assert read_new_words(path) == ["KAZOO:", "LUTE", "word", "HARP 1.0 HH AA"]
    assert "end in a mark are added with it: KAZOO:\n" in caplog.text


def test_the_title_of_a_list_of_words_is_no_word(tmp_path):
    path = write(tmp_path, "Word\nKAZOO\n", "words.csv")
    with pytest.raises(UserError, match=r"words.csv: line 1: Word may be the title"):
        read_new_words(path)
    assert read_new_words(write(tmp_path, "word\n")) == ["word"]
