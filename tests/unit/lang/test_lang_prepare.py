"""make_lang with other options than Kaldi's defaults, and lexica that do not fit."""

import errno
from pathlib import Path

import kaldifst
import pytest

from latflow.errors import UserError
from latflow.lang.directory import Lang
from latflow.lang.lexicon_fst import save_fst
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang

LEXICON = """\
YES Y EH1 S
YEA Y EH0
YEA Y AE1
NO N OW1
KNOW N OW1
"""


@pytest.fixture
def make(repository, tmp_path):
    def call(text=LEXICON, **settings):
        lexicon = tmp_path / "lexicon.txt"
        lexicon.write_text(text, encoding="utf-8")
        options = LangOptions(**settings)
        make_lang(lexicon, tmp_path / "lang", options=options)
        lang = Lang.load(tmp_path / "lang")
        lang.validate()
        return lang

    return call


def lines(lang, name):
    return (lang.folder / name).read_text().splitlines()


def test_position_independent_phones_have_no_markers(make):
    lang = make(position_dependent_phones=False, strip_stress=True)
    assert lang.word_boundary is None
    assert lines(lang, "phones/silence.txt") == ["SIL", "SPN"]
    assert lines(lang, "phones/nonsilence.txt") == ["AE", "EH", "N", "OW", "S", "Y"]
    assert lines(lang, "phones/extra_questions.txt") == []
    assert lines(lang, "phones/roots.txt")[2] == "shared split AE"
    assert lang.lexicon["YES"] == [(1.0, ("Y", "EH", "S"))]


def test_stress_variants_share_a_root_and_are_asked_about(make):
    lang = make(position_dependent_phones=False)
    assert "EH0 EH1" in lines(lang, "phones/sets.txt")
    assert lines(lang, "phones/extra_questions.txt") == [
        "N S Y ",
        "EH0 ",
        "AE1 EH1 OW1 ",
    ]
    apart = make(position_dependent_phones=False, group_stress=False)
    assert "EH0" in lines(apart, "phones/sets.txt")


def test_homophones_and_prefixes_get_disambiguation_symbols(make):
    lang = make("A a\nB a\nC a b\nD a b\nE c\n", position_dependent_phones=False)
    # A, B: #1, #2; C, D: #1, #2; and one more for silence
    assert lines(lang, "phones/disambig.txt") == ["#0", "#1", "#2", "#3"]
    marked = make("A a\nC a b\nE c\n")
    assert lines(marked, "phones/disambig.txt") == ["#0", "#1"]  # a_S is not a_B


def test_shared_silence_and_separate_roots(make):
    lang = make(share_silence_phones=True, share_state_roots=False, strip_stress=True)
    assert lang.roots[0][:2] == (False, False)
    assert len(lang.roots[0][2]) == 10
    assert lang.roots[1][:2] == (False, True)


def test_no_optional_silence(make):
    lang = make(silence_probability=0)
    fst = kaldifst.StdVectorFst.read(str(lang.folder / "L.fst"))
    used = {a.ilabel for s in kaldifst.StateIterator(fst)
            for a in kaldifst.ArcIterator(fst, s)}  # fmt: skip
    assert lang.phone_ids["SIL"] not in used
    assert fst.start == 0


def test_number_of_states_names_and_further_silence_phones(make):
    lang = make(
        "HA LAU\n" + LEXICON,
        num_silence_states=3,
        num_nonsilence_states=1,
        other_silence_phones=["LAU", "NSN"],
        silence_phone="sil",
        spoken_noise_phone="spn",
        optional_silence="NSN",
        silence_word="",
        oov_word="<unk>",
    )
    assert lang.topology.num_pdf_classes(lang.phone_ids["sil"]) == 3
    assert lang.topology.num_pdf_classes(lang.phone_ids["Y_B"]) == 1
    assert lang.phones[lang.optional_silence] == "NSN"
    assert lang.oov_word == "<unk>"
    assert "<SIL>" not in lang.word_ids
    assert lang.speech_words == ["KNOW", "NO", "YEA", "YES"]
    assert lang.words_to_ids("YES hm <s>") == [
        lang.word_ids["YES"], lang.oov_id, lang.oov_id
    ]  # fmt: skip


def test_unknown_and_silence_words_of_the_lexicon_stay(make):
    lang = make("<UNK> SPN SPN\n" + LEXICON)
    assert lang.lexicon["<UNK>"] == [(1.0, ("SPN", "SPN"))]


def test_pronunciation_probabilities_reach_the_transducer(make):
    lang = make("A 0.5 a\nA 1.0 b\n", silence_probability=0)
    fst = kaldifst.StdVectorFst.read(str(lang.folder / "L.fst"))
    costs = {
        lang.phones[arc.ilabel]: arc.weight.value
        for arc in kaldifst.ArcIterator(fst, 0)
        if lang.words[arc.olabel] == "A"
    }
    assert costs == {"a_S": pytest.approx(0.693147), "b_S": pytest.approx(0.0)}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("YES Y AHH\n", {"nonsilence_phones": ["Y", "AH"]},
         "line 1: word YES: unknown phone AHH - did you mean AH?"),
        ("YES Y SIL S\n", {}, "SIL is the name of a silence phone, but stands among"),
        ("YES Y\n", {"nonsilence_phones": ["Y", "SIL"]}, "phone SIL is named twice"),
        ("YES Y\n", {"nonsilence_phones": ["Y S", "Y"]}, "phone Y is named twice"),
        ("YES Y_B S\n", {}, "phone Y_B ends like a marker of word position"),
        ("HM SPN\n", {}, "lexicon.txt: the lexicon has no speech phones"),
        ("YES Y\n", {"optional_silence": "PAU"}, "PAU is not a silence phone"),
    ],
)  # fmt: skip
def test_phones_that_do_not_fit_are_refused(make, tmp_path, text, settings, message):
    with pytest.raises(UserError) as caught:
        make(text, **settings)
    assert message in str(caught.value)
    assert caught.value.remedy
    assert not (tmp_path / "lang").exists()


def test_marked_names_are_allowed_without_position_dependence(make):
    assert "Y_B" in make("YES Y_B S\n", position_dependent_phones=False).phone_ids


def test_a_full_disk_leaves_no_lang_directory(make, tmp_path, monkeypatch):
    write = Path.write_text

    def full(self, *args, **kwargs):
        if self.name == "roots.int":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match="no space left"):
        make()
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["lexicon.txt"]


def test_a_transducer_that_cannot_be_written_is_reported(tmp_path):
    fst = kaldifst.StdVectorFst()
    fst.start = fst.add_state()
    with pytest.raises(UserError, match="could not be written"):
        save_fst(fst, tmp_path / "none/L.fst")
