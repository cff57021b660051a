"""MFA's YAML files with dictionaries by speaker."""

import json

import numpy as np
import pytest
import soundfile
from hypothesis import given as given_values
from hypothesis import strategies as st

from latflow.cli.main import main
from latflow.corpus.dictionaries import named_word, parted_word
from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.lang.completion import pronounce_words
from latflow.lang.directory import Lang
from latflow.lang.lexicon import read_lexicon
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.lang.silence import WordSilence
from latflow.lang.speaker_dictionaries import SpeakerDictionaries, read_dictionaries
from latflow.workflow.recipe import Recipe

US = "tomato 0.99 0.2 1.5 0.9 t ə m e ɾ o\nyes 0.99 0.4 1.1 0.8 j ɛ s\n[hm] 1 hm\n"
UK = "Tomato t ə m ɑ t o\nlift l ɪ f t\n[hm] 1 spn\n<unk> spn\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MFA_ROOT_DIR", str(tmp_path / "mfa"))
    downloads = tmp_path / "mfa/pretrained_models/dictionary"
    downloads.mkdir(parents=True)
    (downloads / "english_us_mfa.dict").write_text(US)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/english uk.txt").write_text(UK)
    return tmp_path


BOTH = "default: english_us_mfa\nann: own/english uk.txt\n7: own/english uk.txt\n"


def given(folder, text):
    (folder / "by_speaker.yaml").write_text(text)
    return folder / "by_speaker.yaml"


def test_dictionaries_are_found(folder):
    """The first is a file of MFA's own tests."""
    found = SpeakerDictionaries.find(given(folder, "default: english_us_mfa\n"))
    assert (found.default.name, found.others) == ("english_us_mfa.dict", {})
    found = SpeakerDictionaries.find(given(folder, BOTH))
    assert found.speakers == {"ann": "english_uk", "7": "english_uk"}
    assert found.of("ann") == found.of("7") == folder / "own/english uk.txt"
    blank = given(folder, BOTH.replace("ann:", "Ann  B:"))
    assert SpeakerDictionaries.find(blank).speakers["Ann_B"] == "english_uk"
    assert SpeakerDictionaries.find(blank).of("Ann B") == found.of("ann")
    assert found.of("bob") == found.of(None) == found.default
    marked = SpeakerDictionaries.find(given(folder, f"\ufeff{BOTH}"))
    assert marked.of("ann") == found.of("ann")
    same = given(folder, "default: english_us_mfa\nann: english_us_mfa\n")
    assert SpeakerDictionaries.find(same).speakers == {}
    assert SpeakerDictionaries.find(folder / "a.txt").files == [folder / "a.txt"]


def test_files_of_one_name_are_told_apart(folder):
    (folder / "english uk.txt").write_text("lift l i f t\n")
    path = given(folder, BOTH + "bob: english uk.txt\n")
    assert SpeakerDictionaries.find(path).speakers["bob"] == "english_uk-2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ann: english_us_mfa\n", "no dictionary is the default one"),
        ("default: english_uk_mfa\n", "no dictionary english_uk_mfa"),
        ("default: [a, b]\n", "not the name of one"),
        ("- own.txt\n", "no mapping of speakers"),
        ("default: {\n", "line 2: not readable as YAML"),
        (f"{BOTH}ann: english_us_mfa\n", "lines 2 and 4: the key ann stands twice"),
        (f"{BOTH}a b: x\na_b: y\n", "differ in blanks and _ only"),
        ("", "no mapping of speakers"),
    ],
)
def test_others_are_refused(folder, text, said):
    with pytest.raises(UserError, match=said):
        SpeakerDictionaries.find(given(folder, text))


def test_words_with_marks_are_refused(folder):
    (folder / "own/english uk.txt").write_text("a⧼b⧽ l ɪ f t\n")
    with pytest.raises(UserError, match=r"uk.txt.*line 1.*mark"):
        read_dictionaries(given(folder, BOTH), LangOptions())


def test_where_one_lexicon_is_meant_it_is_refused(folder):
    with pytest.raises(UserError, match="dictionaries of speakers"):
        read_lexicon(given(folder, "default: english_us_mfa\n"))


def test_words_are_spelled_and_said_as_in_the_speakers_dictionary(folder):
    """Noises are those of the first dictionary that has them; the rest is apart."""
    lexicon = read_dictionaries(given(folder, BOTH), LangOptions())
    assert {(e.word, " ".join(e.phones)) for e in lexicon.entries} == {
        *(("tomato", "t ə m e ɾ o"), ("yes", "j ɛ s"), ("[hm]", "hm")),
        *(("Tomato⧼english_uk⧽", "t ə m ɑ t o"), ("lift⧼english_uk⧽", "l ɪ f t")),
        ("<unk>", "spn"),
    }
    silence = {entry.word: entry.silence for entry in lexicon.entries}
    assert silence["tomato"] == WordSilence(0.2, 1.5, 0.9)
    assert silence["lift⧼english_uk⧽"] is None
    forms = WordForms(lexicon.words, speakers=lexicon.speakers)
    text = "TOMATO yes, [hm] Lift"
    assert forms.words(text, "bob") == ["tomato", "yes", "[hm]", "lift"]
    said = ["Tomato⧼english_uk⧽", "yes⧼english_uk⧽", "[hm]", "lift⧼english_uk⧽"]
    assert forms.words(text, "ann") == said
    assert (forms.num_words, forms.num_known) == (8, 6)
    blanks = WordForms(lexicon.words, speakers={"Ann_B": "english_uk"})
    assert blanks.words("lift", "Ann B") == ["lift⧼english_uk⧽"]
    assert forms.summary().startswith("4 in another case (TOMATO -> tomato;")


def test_lang_directories_hold_all_dictionaries(folder):
    make_lang(given(folder, BOTH), folder / "lang", options=LangOptions())
    lang = Lang.load(folder / "lang")
    assert lang.lexicon["Tomato⧼english_uk⧽"] == [(1.0, tuple("təmɑto"))]
    assert lang.words_to_ids("yes⧼english_uk⧽") == [lang.oov_id]


def test_generated_pronunciations_are_of_the_plain_word(folder):
    """Letters are phones; the other dictionary has them in capitals."""
    words = [a + b + c for a in "pt" for b in "aeiou" for c in "nst"]
    for name, change in (("low.txt", str.lower), ("own/english uk.txt", str.upper)):
        lines = [f"{word} {' '.join(change(word))}\n" for word in words]
        (folder / name).write_text("".join(lines))
    path = given(folder, BOTH.replace("english_us_mfa", "low.txt"))
    options = LangOptions.model_validate({"g2p": {"order": 3, "num_pronunciations": 2}})
    named, plain = pronounce_words(path, ["pas⧼english_uk⧽", "pas"], options)
    assert named == plain
    assert "".join(named[0].phones).lower() == "pas"


@given_values(st.text("ab⧼⧽[]", min_size=1), st.text("xy-", min_size=1))
def test_names_of_dictionaries_are_taken_off_again(word, dictionary):
    named = named_word(word, dictionary)
    if named != word and "⧼" not in word:
        assert parted_word(named) == (word, dictionary)


def test_commands_tell_by_dictionary(folder, capsys):
    for speaker, text in {"ann": "yes lift tomatoe", "bob": "yes tomatoe"}.items():
        (folder / f"corpus/{speaker}").mkdir(parents=True)
        sound = np.random.default_rng(1).normal(scale=0.1, size=16000)
        soundfile.write(folder / f"corpus/{speaker}/{speaker}.wav", sound, 16000)
        (folder / f"corpus/{speaker}/{speaker}.lab").write_text(text)
    path = given(folder, BOTH)
    arguments = [str(folder / "corpus"), str(path)]
    assert main(["find-oovs", *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tomatoe\t1\tbob-bob\tdefault",
        "tomatoe\t1\tann-ann\tenglish_uk",
        "yes\t1\tann-ann\tenglish_uk",
    ]
    assert main(["validate", *arguments]) == 0
    said = capsys.readouterr().out
    assert "speakers with a dictionary who are not in train (1): 7" in said


def test_recipes_that_recognize_speech_are_refused(folder):
    recipe = {
        "experiment": "x",
        "corpus": {"train": {"type": "folder", "path": str(folder)}},
        "lang": {"lexicon": str(given(folder, BOTH))},
        "lm": {"type": "uniform"},
    }
    with pytest.raises(UserError, match="for alignment"):
        Recipe.from_config(recipe)
    recipe["corpus"]["dev"] = {"type": "none"}
    recipe["export_alignments"] = {"systems": ["tri1"]}
    found = Recipe.from_config(json.loads(json.dumps(recipe))).language
    assert [name.rpartition("/")[2] for name in found.beside_lexicon] == [
        *("english_us_mfa.dict", "english uk.txt")
    ]
