"""Lang directories whose files are missing or do not fit together."""

import shutil

import kaldifst
import pytest

from latflow.errors import UserError
from latflow.lang.directory import Lang, read_symbols
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang


@pytest.fixture(scope="module")
def good(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("directory")
    (folder / "lexicon.txt").write_text("A a\nB a b\n")
    options = LangOptions()
    make_lang(folder / "lexicon.txt", folder / "lang", options=options)
    return folder / "lang"


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "lang")


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_good_directory_loads(folder):
    lang = Lang.load(folder)
    lang.validate()
    assert lang.words[lang.oov_id] == "<UNK>"
    assert lang.base_phone(lang.phone_ids["a_B"]) == "a"


def test_lexicon_of_kaldis_directories_comes_from_the_align_lexicon(folder):
    expected = Lang.load(folder).lexicon
    (folder / "lexiconp.txt").unlink()
    (folder / "lexicon.txt").unlink()
    assert Lang.load(folder).lexicon == expected


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("phones.txt", "SIL 1", "SIL", "line 2 is not a symbol and its id"),
        ("phones.txt", "SIL 1", "SIL one", "line 2 is not a symbol and its id"),
        ("phones.txt", "SIL 1", "SIL 2147483647", "line 2 is not a symbol and its id"),
        ("phones.txt", "SIL_B 2", "SIL 2", "symbol SIL comes twice"),
        ("phones.txt", "SIL_B 2", "SIL_B 1", "two symbols have the same id"),
        ("phones.txt", "<eps> 0\n", "", "<eps> must have the id 0"),
        ("words.txt", "<eps> 0", "<eps> 9", "<eps> must have the id 0"),
        ("words.txt", "#0 5", "#9 5", "#0 is missing"),
        ("oov.txt", "<UNK>", "<OOV>", "<OOV> is not in words.txt"),
        ("oov.txt", "<UNK>", "<UNK> A", "it must hold one word"),
        ("phones/silence.int", "5\n", "99\n", "99 is not a phone of phones.txt"),
        ("phones/silence.int", "2\n", "11\n", "is in two of its lists"),
        (
            "phones/silence.int",
            "2\n",
            "",
            "SIL_B of phones.txt is in none of its lists",
        ),
        ("phones/optional_silence.int", "1\n", "11\n", "it is not a silence phone"),
        ("phones/optional_silence.int", "1\n", "1\n2\n", "it must name one phone"),
        ("phones/context_indep.int", "1\n", "19\n", "it has a disambiguation symbol"),
        ("phones/sets.int", "1 2", "2", "it lacks phone SIL"),
        ("phones/sets.int", "1 2", "1 1 2", "it names a phone twice"),
        ("phones/roots.int", "shared split 1", "split 1", "line 1 is not [not-]shared"),
        ("phones/roots.int", "shared split 1 ", "shared split ", "it lacks phone SIL"),
        ("phones/word_boundary.int", "2 begin", "2 first", "not a phone and its kind"),
        ("phones/word_boundary.int", "2 begin\n", "", "it lacks phone SIL_B"),
        ("topo", "\n1 2 3", "\n2 3", "it lacks phone SIL"),
        ("topo", "\n1 2 3", "\n1 2 3 99", "has the unexpected phone 99"),
    ],
)
def test_contradictions_are_refused(folder, name, old, new, message):
    replace(folder / name, old, new)
    with pytest.raises(UserError) as caught:
        Lang.load(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["phones.txt", "words.txt", "topo", "oov.txt", "phones/sets.int"]
)
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name}: no such file"):
        Lang.load(folder)


def test_missing_directory_and_empty_table(tmp_path):
    with pytest.raises(UserError, match="no such lang directory"):
        Lang.load(tmp_path / "lang")
    (tmp_path / "words.txt").write_text("")
    with pytest.raises(UserError, match="symbol table is empty"):
        read_symbols(tmp_path / "words.txt")


def test_transducers_are_validated(folder):
    lang = Lang.load(folder)
    (folder / "L.fst").write_bytes((folder / "L_disambig.fst").read_bytes())
    with pytest.raises(UserError, match="is not a phone that it may have"):
        lang.validate()
    fst = kaldifst.StdVectorFst()
    fst.start = fst.add_state()
    fst.add_arc(0, kaldifst.StdArc(1, 99, 0.0, 0))
    fst.write(str(folder / "L.fst"))
    with pytest.raises(UserError, match="label 99 is not a word"):
        lang.validate()
    empty = kaldifst.StdVectorFst()
    empty.start = empty.add_state()
    empty.write(str(folder / "L.fst"))
    with pytest.raises(UserError, match="the transducer is empty"):
        lang.validate()
    (folder / "L.fst").write_text("no transducer")
    with pytest.raises(UserError, match="L.fst"):
        lang.validate()
    (folder / "L.fst").unlink()
    with pytest.raises(UserError, match="L.fst"):
        lang.validate()
