"""Names of silence and noise: configured, found in the lexicon, or contradictory."""

import pytest

from latflow.errors import UserError
from latflow.lang.completion import complete_lexicon
from latflow.lang.directory import Lang
from latflow.lang.lexicon import read_lexicon
from latflow.lang.options import G2pOptions, LangOptions
from latflow.lang.prepare import make_lang
from latflow.lang.special_words import SpecialNames, special_names

WORDS = "YES Y EH S\nNO N OW\n"


@pytest.fixture
def names(tmp_path):
    def call(text, **settings):
        path = tmp_path / "lexicon.txt"
        path.write_text(text)
        return special_names(read_lexicon(path), LangOptions(**settings))

    return call


FOUND = {
    "plain": ("", SpecialNames()),
    "Kaldi's librispeech": (
        "!SIL SIL\n<SPOKEN_NOISE> SPN\n<UNK> SPN\n",
        SpecialNames(silence_word="!SIL"),
    ),
    "Kaldi's wsj": (
        "!SIL SIL\n<SPOKEN_NOISE> SPN\n<UNK> SPN\n<NOISE> NSN\n",
        SpecialNames("SIL", "SPN", ("NSN",), "!SIL", "<UNK>"),
    ),
    "Kaldi's swbd": (
        "!sil sil\n[vocalized-noise] spn\n[noise] nsn\n[laughter] lau\n<unk> spn\n",
        SpecialNames("sil", "spn", ("nsn", "lau"), "!sil", "<unk>"),
    ),
    "Kaldi's aishell": ("SIL sil\n", SpecialNames("sil", silence_word="SIL")),
    "an oov phone": (
        "<unk> OOV\n[SPN] SPN\n", SpecialNames("SIL", "OOV", ("SPN",), oov_word="<unk>")
    ),
    "MFA": (
        "<eps> sil\n<laughter> spn\n<unk> spn\n[bracketed] spn\n",
        SpecialNames("sil", "spn", oov_word="<unk>"),
    ),
    "MFA without unknown word": ("[laughter] spn\n", SpecialNames("SIL", "spn")),
    "Sphinx": (
        "<s> SIL\n</s> SIL\n<sil> SIL\n[NOISE] +NSN+\n[SPEECH] +SPN+\n",
        SpecialNames("SIL", "+SPN+", ("+NSN+",), "<sil>"),
    ),
    "phones as words": (
        "sil sil\nspn spn\nnsn nsn\n", SpecialNames("sil", "spn", ("nsn",), "sil")
    ),
    "spoken noise alone": (
        "<SPOKEN_NOISE> SPN\n", SpecialNames(oov_word="<SPOKEN_NOISE>")
    ),
    "unknown word of two phones": ("<unk> spn spn\n", SpecialNames(
        "SIL", "spn", oov_word="<unk>")),
    "unknown word of speech": ("<unk> S\n", SpecialNames()),
    "letters in brackets": ("(s) S\n[shout] Y EH\n", SpecialNames()),
    "no silence names": ("!BANG B AE NG\nsilence S\n", SpecialNames()),
}  # fmt: skip


@pytest.mark.parametrize("lexicon", FOUND)
def test_names_are_those_of_the_lexicon(names, lexicon):
    text, expected = FOUND[lexicon]
    assert names(WORDS + text) == expected


def test_options_win(names):
    text = WORDS + "!SIL sil\n<unk> spn\n[noise] nsn\n"
    found = names(text, silence_word="", oov_word="<OOV>", other_silence_phones=[])
    assert found == SpecialNames("sil", "spn", (), "", "<OOV>")
    found = names(text, silence_phone="sil", spoken_noise_phone="spn")
    assert found == SpecialNames("sil", "spn", ("nsn",), "!SIL", "<unk>")
    found = names(WORDS + "[hm] HM\n", nonsilence_phones=["Y", "EH", "S", "N", "OW HM"])
    assert found == SpecialNames()
    found = names(WORDS + "<p> pau\n<q> qq\n", silence_word="<p>", oov_word="<q>")
    assert found == SpecialNames("pau", "qq", (), "<p>", "<q>")


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("!SIL sil\n", {"silence_phone": "SIL"},
         "line 3: word !SIL has the phone sil, but lang.silence_phone is SIL - correct "
         "the line, set lang.silence_phone to sil, or list"),
        ("!SIL sil\n<SIL> SIL\n", {},
         "line 4: word <SIL> has the phone SIL, but word !SIL in line 3 has sil"),
        ("<unk> spn\n", {"spoken_noise_phone": "SPN"},
         "line 3: word <unk> has the phone spn, but lang.spoken_noise_phone is SPN"),
    ],
)  # fmt: skip
def test_contradictions_are_one_line(names, text, settings, message):
    with pytest.raises(UserError) as caught:
        names(WORDS + text, **settings)
    assert message in str(caught.value)


def test_a_second_silence_may_be_listed(names):
    text = WORDS + "!SIL sil\n<SIL> SIL\n"
    found = names(text, silence_phone="sil", other_silence_phones=["SIL"])
    assert found.silence_phones == ["sil", "SPN", "SIL"]


def test_the_language_has_the_names(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text(WORDS + FOUND["Kaldi's swbd"][0])
    make_lang(path, tmp_path / "lang", options=LangOptions())
    lang = Lang.load(tmp_path / "lang")
    bare = ["sil", "spn", "nsn", "lau"]
    assert [
        lang.phones[p] for p in lang.silence_phones if "_" not in lang.phones[p]
    ] == bare
    assert lang.oov_word == "<unk>"
    assert lang.phones[lang.optional_silence] == "sil"
    assert lang.speech_words == ["NO", "YES"]
    assert not {"<SIL>", "<UNK>"} & lang.word_ids.keys()


def test_silence_within_a_word_is_refused_with_its_line(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("!SIL sil\nYES Y sil S\n")
    with pytest.raises(UserError, match="line 2: word YES: sil is the name of a silen"):
        make_lang(path, tmp_path / "lang", options=LangOptions())


def test_a_completed_lexicon_keeps_silence_and_its_names(tmp_path):
    (tmp_path / "silprob.txt").write_text("<s> 0.9\n</s>_s 2\n</s>_n 1\noverall 0.2\n")
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text(
        "<eps> sil\nab 1.0 0.3 1.1 0.9 A B\nba B A\naba A B A\nbaba B A B A\n[x] spn\n"
    )
    text = tmp_path / "text.txt"
    text.write_text("ab bab ba\n")
    completed = tmp_path / "g2p/lexicon.txt"
    options = LangOptions(
        g2p=G2pOptions(order=2, num_pronunciations=1, sources=("lm",))
    )
    complete_lexicon(
        lexicon, tmp_path / "g2p", options=options,
        cuts=tmp_path / "none", text=text,
    )  # fmt: skip
    for number, path in enumerate((lexicon, completed)):
        generated = tmp_path / "g2p/generated.tsv" if number else None
        out = tmp_path / f"lang{number}"
        make_lang(path, out, options=options, generated=generated)
    rows = [(tmp_path / f"lang{n}/lexiconp_silprob.txt").read_text() for n in (0, 1)]
    assert rows[1].startswith(rows[0])
    assert "bab 1 0.2 1 1 B A B" in rows[1][len(rows[0]) :]
    for name in ("silprob.txt", "phones.txt", "oov.txt"):
        same = [(tmp_path / f"lang{n}/{name}").read_text() for n in (0, 1)]
        assert same[0] == same[1]
