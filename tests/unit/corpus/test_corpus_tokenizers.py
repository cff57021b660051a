"""Words of texts that are written without blanks."""

from importlib.util import find_spec

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from latflow.corpus.manifests import read_cuts, text_of
from latflow.corpus.options import FolderSource
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.tokenizers import join_pieces, make_tokenizer
from latflow.corpus.words import TextRules, WordForms
from latflow.errors import UserError
from latflow.options import read_options
from latflow.workflow.layout import find_source
from latflow.workflow.sets import _files_of

PAIRS = (
    "def pairs(text):\n    return [text[i : i + 2] for i in range(0, len(text), 2)]\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("我爱北京", ["我", "爱", "北", "京"]),
        ("我有3个iPhone 15", ["我", "有", "3", "个", "iPhone", "15"]),
        ("コーヒーを飲む", ["コー", "ヒー", "を", "飲", "む"]),
        ("人々", ["人", "々"]),
        ("วันดี", ["วั", "น", "ดี"]),
        ("[noise] 好 <unk>", ["[noise]", "好", "<unk>"]),
        ("[笑声]好<unk>，", ["[笑声]", "好", "<unk>", "，"]),
        ("don't stop", ["don't", "stop"]),
        (" \u3000", []),
    ],
)
def test_each_character_of_scripts_without_case_is_a_word(text, words):
    assert make_tokenizer("characters")(text) == words


@given(st.text())
def test_characters_are_all_there_in_their_order(text):
    assert "".join(make_tokenizer("characters")(text)) == "".join(text.split())


def test_the_lexicon_spells_the_words():
    forms = WordForms({"我", "爱", "abc"}, TextRules(tokenizer="characters"))
    assert forms.words("我爱ＡＢＣ。") == ["我", "爱", "abc"]


def test_a_function_of_your_own(tmp_path):
    (tmp_path / "own.py").write_text(PAIRS)
    assert make_tokenizer(f"{tmp_path}/own.py:pairs")("北京大学") == ["北京", "大学"]
    with pytest.raises(UserError, match="cannot be loaded"):
        make_tokenizer(f"{tmp_path}/own.py:triples")
    for result, fault in [
        ("[text, 3]", "gives 3, which is not a word"),
        ("['a b']", "gives 'a b', which is not a word"),
        ("1 / 0", "fails: ZeroDivisionError"),
        ("None", "fails: TypeError"),
    ]:
        path = tmp_path / f"f{len(result)}.py"
        path.write_text(f"def words(text):\n    return {result}\n")
        with pytest.raises(UserError, match=fault):
            make_tokenizer(f"{path}:words")("text")


def test_other_names_are_refused():
    with pytest.raises(UserError, match="tokenizer words is not one of blanks, "):
        make_tokenizer("words")
    values = {"type": "folder", "path": "x", "tokenizer": "words"}
    with pytest.raises(UserError, match="tokenizer: is not one of blanks, characters"):
        read_options(FolderSource, values)


def test_icu_divides_by_its_dictionaries():
    if find_spec("icu") is None:
        with pytest.raises(UserError, match="needs the Python package PyICU"):
            make_tokenizer("icu")
        return
    words = make_tokenizer("icu")
    assert words("北京大学生 don't") == ["北京", "大学生", "don't"]
    assert words("สวัสดีครับ ខ្ញុំស្រឡាញ់") == ["สวัสดี", "ครับ", "ខ្ញុំ", "ស្រឡាញ់"]
    # Of letters beyond 16 bits some versions make words of their own.
    assert "".join(words("𠮷野家で")) == "𠮷野家で"
    assert words("[noise] 好。") == ["[noise]", "好", "。"]
    assert words("well-known Mr. 在Wi-Fi上") == [
        "well-known",
        "Mr.",
        "在",
        "Wi-Fi",
        "上",
    ]


def test_icu_leaves_words_of_scripts_with_blanks_whole():
    for pieces, words in [
        (["well", "-", "known", "."], ["well-known."]),
        (["在", "Wi", "-", "Fi", "上", "。"], ["在", "Wi-Fi", "上", "。"]),
        (["ไป", "-", "มา"], ["ไป", "-", "มา"]),
        (["コーヒー", "3.5", "%"], ["コーヒー", "3.5%"]),
        ([], []),
    ]:
        assert join_pieces(pieces) == words


def test_a_corpus_is_divided_so_and_made_anew_with_the_function(tmp_path, monkeypatch):
    folder = tmp_path / "audio"
    folder.mkdir()
    soundfile.write(folder / "a.wav", np.full(8000, 0.1), 8000)
    (folder / "a.txt").write_text("北京大学。", encoding="utf-8")
    (tmp_path / "own.py").write_text(PAIRS)
    monkeypatch.chdir(tmp_path)
    settings = {"tokenizer": "own.py:pairs", "exclude": "bad.txt"}
    found = find_source("audio", settings)
    assert found["exclude"] == str(tmp_path / "bad.txt")
    for name in ("characters", "own.words:pairs"):
        assert find_source("audio", {"tokenizer": name})["tokenizer"] == name
    monkeypatch.chdir("/")  # as the run of `latflow align`, in its own folder
    source = FolderSource(path=str(folder), tokenizer=found["tokenizer"])
    prepare_corpus(
        source, "one", tmp_path / "made",
        seed=0, threads=1, max_skipped_fraction=0.0, vocabulary={"北京", "大学"},
    )  # fmt: skip
    (cut,) = read_cuts(tmp_path / "made/cuts.jsonl.gz")
    assert text_of(cut) == "北京 大学"
    assert str(tmp_path / "own.py") in _files_of(source)
