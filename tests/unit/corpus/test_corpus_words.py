"""Words of transcripts as people write them, in the spelling of a lexicon."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.corpus.ids import Ids
from latflow.corpus.words import TextRules, WordForms, no_word_known
from latflow.errors import UserError
from latflow.lang.vocabulary import read_vocabulary
from latflow.ledger import Ledger

LOWER = {
    *("one", "two", "three", "four", "five", "six", "seven", "don't", "there", "'s"),
    *("l'", "homme", "straße", "café", "mother-in-law", "<noise>", "[laughter]", "&"),
}
# What people write, and the words of LOWER that they mean.
FORMS = {
    "one two": "one two",
    "ONE Two": "one two",
    "don’t donʼt don`t DON´T don＇t": "don't don't don't don't don't",
    "said—three four,five _six_ ‘seven’": "said three four five six seven",
    "“one,” (two) «three» 'four' \"five\"": "one two three four five",
    "one... two…three four?five!six;seven": "one two three four five six seven",
    "one -- two--three - four": "one two three four",
    "two-three mother-in-law mother‑in‑law": "two three mother-in-law mother-in-law",
    "t-shirt": "t shirt",
    "there's l’homme": "there 's l' homme",
    "#one +two =three ~four %five *six*": "one two three four five six",
    "<noise> [laughter] <cough> [Breath]": "<noise> [laughter] <cough> [Breath]",
    "<NOISE>": "<noise>",
    "one، two؛ three؟ four۔": "one two three four",
    "one। two॥": "one two",
    "one、two。「three」・four": "one two three four",
    "one，two；three：four！": "one two three four",
    "ｏｎｅ\u3000ｔｗｏ\u00a0three": "one two three",
    "STRASSE stra\u00dfe": "straße straße",
    unicodedata.normalize("NFD", "café CAFÉ"): "café café",
    "\ufeffone two\u00adthree fo\u00adur \u200ftwo\u200e": "one twothree four two",
    "one\u200btwo": "one two",
    "1,000 4,five": "1,000 4 five",
    "one & two": "one & two",
    "one ♪ … two — :-)": "one two",
    "U.S.A. wait...what": "u.s.a wait what",
    "XYZ": "xyz",
    "": "",
}


@pytest.mark.parametrize("text", FORMS)
def test_words_take_the_spelling_of_the_lexicon(text):
    assert " ".join(WordForms(LOWER).words(text)) == FORMS[text]


def test_a_lexicon_of_mixed_case_decides_word_by_word():
    forms = WordForms({"Haus", "das", "I", "Essen", "essen", "iPhone"})
    text = "DAS haus Das i Essen ESSEN essen IPHONE Unbekannt"
    assert " ".join(forms.words(text)) == (
        "das Haus das I Essen essen essen iPhone Unbekannt"
    )
    assert forms.changed == {"in another case": 6}
    assert "DAS -> das; haus -> Haus" in forms.summary()
    assert (forms.num_words, forms.num_known) == (9, 8)


def test_unknown_words_take_the_case_that_all_words_share():
    assert WordForms({"ONE", "DON’T"}).words("xyz can't <hm>") == [
        *("XYZ", "CAN’T", "<hm>")
    ]
    assert WordForms().words("One, TWO don’t") == ["One", "TWO", "don't"]


def test_marks_of_a_lexicon_are_words():
    forms = WordForms({",", "one", "rock'n'roll", "C++", "(SOFT)", "--"})
    text = "one , rock'n'roll C++ (SOFT) -- one,"
    assert forms.words(text) == [
        *("one", ",", "rock'n'roll", "C++", "(SOFT)", "--", "one")
    ]


# Words of a lexicon, and what people write for them.
LANGUAGES = {
    "Turkish": (
        "ılık istanbul dıl dil",
        {"İSTANBUL": "istanbul", "ILIK": "ılık", "DIL DİL": "dıl dil", "IX": "ıx"},
    ),
    "Turkish capitals": (
        "ILIK İSTANBUL",
        {"ılık istanbul": "ILIK İSTANBUL", "iki": "İKİ"},
    ),
    "English with a Turkish name": (
        " ".join(["i", "ışık", "istanbul", *(f"w{n}" for n in range(200))]),
        {"I İSTANBUL ışık": "i istanbul ışık"},
    ),
    "Greek": ("σας οδός", {"ΣΑΣ Οδός; σασ·": "σας οδός σας"}),
    "Hebrew": (
        "שלום צה״ל בית ג'ורג' ספר",
        {
            "שָׁלוֹם \u200fשלום": "שלום שלום",
            'צה"ל, "צה"ל"': "צה״ל צה״ל",
            "בית־ספר ג׳ורג׳": "בית ספר ג'ורג'",
            'דו"ח': 'דו"ח',
        },
    ),
    "Arabic": ("كتاب قال", {"كِتَابٌ كـتـاب «قَالَ»،": "كتاب كتاب قال"}),
    "Persian": ("کتاب خوبی", {"كتاب خوبي": "کتاب خوبی"}),
    "Hindi": ("क्या है", {"क्\u200dया है।": "क्या है"}),
    "Russian": ("ещё все всё", {"Еще ещё Все всё": "ещё ещё все всё"}),
    "Romanian": ("şi ţară", {"și Țară": "şi ţară"}),
    "Catalan": ("col·lega", {"col•lega COL.LEGA col‧lega": "col·lega " * 3}),
    "Hawaiian": ("hawaiʻi ʻo", {"Hawai'i Hawai‘i ‘O": "hawaiʻi hawaiʻi ʻo"}),
    "Ukrainian": ("п'ять", {"П’ять пʼять": "п'ять п'ять"}),
    "Navajo": ("tʼáá", {"T’a\u0301a\u0301 t'áá": "tʼáá tʼáá"}),
    "initials": (
        "u.s. mr. a. b. c d",
        {"U.S. U.S Mr. Mr": "u.s. u.s. mr. mr.", "A.B. c.d. x.y.": "a. b. c d x.y"},
    ),
    "marks within": (
        "one two c r 10 30",
        {
            "one:two ONE_two one=two two.One": "one two " * 3 + "two one",
            "10:30 10.30 one.two one:x R&B": "10 30 10.30 one.two one:x r&b",
            "{one} {NOISE}": "{one} {NOISE}",
        },
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_of_languages_with_spellings_of_their_own(language):
    vocabulary, written = LANGUAGES[language]
    forms = WordForms(vocabulary.split())
    for text, words in written.items():
        assert forms.words(text) == words.split()
        assert forms.words(words) == words.split()


def test_clitics_leave_unknown_words_and_one_another():
    words = WordForms({"l'", "qu'", "'s", "'em", "homme", "there", "o'clock"}).words
    assert words("qu'l'homme L’Wug wug's") == [
        "qu'",
        "l'",
        "homme",
        "l'",
        "wug",
        *["wug", "'s"],
    ]
    assert words("l'wug's there's l'") == ["l'", "wug", "'s", "there", "'s", "l'"]
    # A part that the lexicon has without its apostrophe is not a clitic.
    assert words("there'wug o'clock 'wug'") == ["there'wug", "o'clock", "wug"]
    many = words("l'" * 1000 + "wug")
    assert many[:3] == ["l'", "l'", "l'"]


def test_spellings_that_two_words_share_find_neither():
    forms = WordForms({"כֶּלֶב", "כָּלֵב"})
    assert forms.words("כלב") == ["כלב"]


def test_rules_choose_case_and_characters():
    keep = TextRules(case="keep")
    assert WordForms({"ONE"}, keep).words("one ONE") == ["one", "ONE"]
    lower = TextRules(case="lower")
    assert WordForms({"one", "ONE"}, lower).words("One XYZ") == ["one", "xyz"]
    assert WordForms({"one"}, TextRules(case="upper")).words("x") == ["X"]
    none = TextRules(punctuation="", compounds="")
    assert WordForms({"one"}, none).words("one. a-b") == ["one.", "a-b"]
    marks = TextRules(punctuation="@.", clitics="'")
    assert WordForms({"one"}, marks).words("@one@ “one” ’s") == ["one", "“one”", "’s"]


def test_no_known_word_is_an_error_that_names_the_pair():
    forms = WordForms({"TWO"}, TextRules(case="keep"))
    forms.words("two three")
    error = str(no_word_known(forms, "text"))
    assert "none of the 2 words" in error
    assert "e.g. 'two'; the lexicon has 'TWO' - set `case` of this source" in error
    forms.words("TWO")
    assert no_word_known(forms, "text") is None
    assert no_word_known(WordForms(), "text") is None


WORDS = st.text(st.characters(exclude_categories=("Cs", "Z", "Cc")), min_size=1)


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, min_size=1, max_size=4))
def test_known_words_stay_and_a_second_pass_changes_nothing(vocabulary, tokens):
    forms = WordForms(vocabulary)
    known = [word for word in tokens if word in vocabulary]
    assert forms.words(" ".join(known)) == known
    once = forms.words(" ".join(tokens))
    assert forms.words(" ".join(once)) == once


def test_vocabularies_are_lexica_or_symbol_tables(tmp_path):
    (tmp_path / "lexicon.txt").write_text("one W AH N\ntwo T UW\n")
    (tmp_path / "words.txt").write_bytes(b"<eps> 0\r\none 1\r\ntwo 2\r\n#0 3\r\n")
    for name in ("lexicon.txt", "words.txt"):
        assert read_vocabulary(tmp_path / name) == ({"one", "two"}, {})


def test_ids_with_blanks_are_changed_and_no_two_are_the_same():
    ledger = Ledger("x")
    ids = Ids("speaker", ledger)
    raw = ["A_B", "A B", "A B", "A\u00a0B", "C", "A B-2", "A_B"]
    assert [ids.name(each) for each in raw] == [
        *("A_B", "A_B-2", "A_B-2", "A_B-3", "C", "A_B-2-2", "A_B")
    ]
    assert [e.reason for e in ledger.entries] == [
        "speaker 'A B' is called A_B-2",
        "speaker 'A\\xa0B' is called A_B-3",
        "speaker 'A B-2' is called A_B-2-2",
    ]
    assert {e.action for e in ledger.entries} == {"renamed"}
    with pytest.raises(UserError, match="a speaker without a name: ' '"):
        ids.name(" ")
