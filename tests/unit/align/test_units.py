"""Units of words: phones, characters, words, and the transcripts that they spell."""

import numpy as np
import pytest

from latflow.align.units import UnitGraphs, Units, spell_transcripts
from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger

LEXICON = "ab 0.4 A B\nab 1.0 AA1 B\nba 1.0 B AA0\n<noise> 1.0 SPN\n"


@pytest.fixture(scope="module")
def lang(tmp_path_factory):
    root = tmp_path_factory.mktemp("lang")
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=LangOptions())
    return Lang.load(root / "lang")


def told(units, text):
    return [units.names[unit] for unit in units.spell(text)]


def test_phones_are_those_of_the_likeliest_pronunciation(lang):
    units = Units.of(lang, "phone")
    assert units.names[0] == "</s>"
    assert not {"SIL"} & set(units.names)
    first = told(units, "ab")
    assert first == [told(units, "ba")[1], "B"]  # stress makes no other unit
    assert told(units, "ab unheard ba") == [*first, "SPN", *first[::-1]]
    assert len(units.spellings("ab")) == 2
    assert units.spell("") == []


def test_characters_end_words_with_a_space(lang):
    units = Units.of(lang, "character")
    assert units.names == ("</s>", "a", "b", "<space>")
    assert told(units, "ab <noise> bb") == ["a", "b", "<space>", "b", "b", "<space>"]
    assert units.spell("abc") == "the character 'c' of abc is in no lexicon word"
    assert units.spellings("ba") == [(2, 1, 3)]


def test_words(lang):
    units = Units.of(lang, "word")
    assert {"</s>", "ab", "ba", "<noise>", lang.oov_word} <= {*units.names}
    assert told(units, "ba unheard") == ["ba", lang.oov_word]


def test_units_of_another_language_are_refused(lang, tmp_path):
    units = Units.of(lang, "character")
    units.check(list(units.names), tmp_path)
    with pytest.raises(UserError, match="other units"):
        units.check(["</s>", "a"], tmp_path)


def test_transcripts_are_spelled_and_others_are_in_the_ledger(lang, tmp_path):
    texts = {"a1": "ab ba", "a2": "abc", "a3": ""}
    with FrameWriter(tmp_path / "frames", dim=1) as writer:
        for name, text in texts.items():
            writer.append(name, "s", text, np.zeros((5, 1), np.float32))
    out = tmp_path / "units"
    spell_transcripts(
        tmp_path / "frames", lang.folder, out, kind="character", subsampling=2
    )
    store = UnitGraphs.load(out)
    assert store.utt_ids == ["a1", "a3"]
    assert store.graph(0).ilabel.tolist() == [1, 2, 3, 2, 1, 3]
    assert store.graph(1).num_arcs == 0  # its end alone
    assert (store.kind, store.num_classes, store.subsampling) == ("character", 4, 2)
    (entry,) = read_ledger(out / "ledger.jsonl")
    assert entry.utterance == "a2"
    assert "in no lexicon word" in entry.reason
    with pytest.raises(UserError, match="1 of 3"):
        spell_transcripts(
            tmp_path / "frames",
            lang.folder,
            tmp_path / "none",
            kind="character",
            max_skipped_fraction=0.2,
        )
