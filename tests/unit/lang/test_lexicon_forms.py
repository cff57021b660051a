"""Lexica in the forms that people have them: the same language, or the one line."""

import math

import kaldifst
import pytest

from latflow.errors import UserError
from latflow.lang.directory import Lang
from latflow.lang.extension import extend_lang
from latflow.lang.lexicon import read_lexicon
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang

PLAIN = """\
ZERO Z IH R OW
ZERO Z IY R OW
ONE W AH N
NINE N AY N
"""

SAME = {
    "tabs": PLAIN.replace(" ", "\t"),
    "tab behind the word": "".join(
        line.replace(" ", "\t", 1) + "\n" for line in PLAIN.splitlines()
    ),
    "CRLF and blanks at the ends": PLAIN.replace("\n", " \r\n"),
    "byte order mark": "\ufeff" + PLAIN,
    "no-break space": PLAIN.replace(" ", "\u00a0"),
    "probabilities of 1": PLAIN.replace("ZERO ", "ZERO 1.0 ").replace("NE ", "NE 1 "),
    "probabilities, some lines without": PLAIN.replace("ZERO ", "ZERO 0.5 "),
    "exponents": PLAIN.replace("ZERO ", "ZERO 5e-01 "),
    "CMU's comments": ";;; # CMU\n## $Date\n# by hand\n"
    + PLAIN.replace("AY N", "AY N # number, english"),
    "commented-out entry": "# ZERO Z EH R OW\n" + PLAIN,
    "numbered variants": PLAIN.replace("ZERO Z IY", "ZERO(2) Z IY"),
    "variants numbered from 1": PLAIN.replace("ZERO Z IH", "ZERO(01)  Z IH").replace(
        "ZERO Z IY", "ZERO(02)  Z IY"
    ),
    "HTK": "".join(
        "{0:16}[{0}] {1}\n".format(*line.split(" ", 1)) for line in PLAIN.splitlines()
    ),
    "HTK with probabilities": PLAIN.replace("ZERO ", "ZERO [zero] 0.5 ").replace(
        "NE ", "NE [] 1.0 "
    ),
    "invisible characters": PLAIN.replace("NINE", "NI\u200bNE\u00ad"),
    "marks of syllables": PLAIN.replace("Z ", "Z . ").replace("R OW", "- R OW ."),
    "marks of stress": PLAIN.replace("Z ", '" Z ').replace(" W ", " \u02c8 W "),
    "silence and unknown words": "<SIL> SIL\n<UNK> SPN\n" + PLAIN,
    "edges of sentences": PLAIN + "<s> SIL\n</s> SIL\n<eps> SIL\n",
}


@pytest.fixture
def make(tmp_path):
    def call(text, name="lang", **settings):
        lexicon = tmp_path / f"{name}.txt"
        lexicon.write_bytes(text.encode() if isinstance(text, str) else text)
        make_lang(lexicon, tmp_path / name, options=LangOptions(**settings))
        return tmp_path / name

    return call


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("form", SAME)
def test_forms_of_a_lexicon_make_the_same_language(make, form):
    assert files(make(SAME[form], "other")) == files(make(PLAIN))


@pytest.mark.parametrize("columns", ["0.99 0.13 1.0 0.9", "0.99\t0.13\t1\t0.9"])
def test_columns_of_silence_change_nothing_but_the_transducers(make, columns):
    plain = files(make(PLAIN))
    other = files(make(PLAIN.replace("ONE ", f"ONE {columns} "), "other"))
    changed = {name for name in plain if plain[name] != other[name]}
    assert changed == {"L.fst", "L_disambig.fst"}
    assert other.keys() - plain.keys() == {"lexiconp_silprob.txt", "silprob.txt"}
    rows = other["lexiconp_silprob.txt"].decode().splitlines()
    assert "ONE 1 0.13 1 0.9 W AH N" in rows
    assert "NINE 1 0.5 1 1 N AY N" in rows  # neutral
    assert "<UNK> 1 0.5 1 1 SPN" in rows
    assert other["silprob.txt"].decode() == "<s> 0.5\n</s>_s 1\n</s>_n 1\noverall 0.5\n"


SILPROB = "<s> 0.99\n</s>_s 2.5\n</s>_n 0.01\noverall 0.20\n"


def cost(folder, symbols):
    """Cost of the cheapest path of phones through L.fst."""
    lang = Lang.load(folder)
    labels = [lang.phone_ids[symbol] for symbol in symbols.split()]
    fst = kaldifst.StdVectorFst.read(str(folder / "L.fst"))
    both = kaldifst.compose(kaldifst.make_linear_acceptor(labels), fst)
    *_, total = kaldifst.get_linear_symbol_sequence(kaldifst.shortest_path(both))
    return total.value


def test_kaldis_files_of_silence_are_read_and_cost_what_they_say(make, tmp_path):
    (tmp_path / "silprob.txt").write_text(SILPROB)
    lang = make("A 0.5 0.3 1.2 0.8 a\nA 1 0.4 1.1 0.9 b\nB 1.0 0.25 0.7 1.3 c\nC c d\n")
    assert (lang / "silprob.txt").read_text().endswith("overall 0.2\n")
    assert " 0.2 1 1 c d\n" in (lang / "lexiconp_silprob.txt").read_text()
    factors = [0.99, 0.5, 1.2, 0.3, 0.7, 1 - 0.25, 0.01]
    expected = -sum(map(math.log, factors))
    assert cost(lang, "SIL a_S SIL c_S") == pytest.approx(expected, abs=1e-4)
    factors = [0.01, 1.0, 0.9, 1 - 0.4, 1.3, 0.25, 2.5]
    expected = -sum(map(math.log, factors))
    assert cost(lang, "b_S c_S SIL") == pytest.approx(expected, abs=1e-4)


def test_without_optional_silence_the_columns_are_not_used(make):
    text = "A 0.5 0.3 1.2 0.8 a\nB b\n"
    with_columns = files(make(text, silence_probability=0))
    plain = files(make("A a\nB b\n", "other", silence_probability=0))
    assert with_columns == plain


def test_an_extended_language_has_the_columns_too(make, tmp_path):
    model = make(PLAIN)
    words = tmp_path / "words.txt"
    words.write_text("RAW 0.9 0.2 1.5 0.7 R OW\nNOW N AY\n[noise] nsn\n<eps> sil\n")
    extend_lang(model, words, tmp_path / "more", options=LangOptions())
    rows = (tmp_path / "more/lexiconp_silprob.txt").read_text().splitlines()
    assert rows == [
        "<UNK> 1 0.5 1 1 SPN", "RAW 1 0.2 1.5 0.7 R OW", "NOW 1 0.5 1 1 N AY",
        "[noise] 1 0.5 1 1 SPN",
    ]  # fmt: skip
    factors = [0.5, 0.7, 1 - 0.2]
    expected = -sum(map(math.log, factors))
    assert cost(tmp_path / "more", "R_B OW_E") == pytest.approx(expected, abs=1e-4)


def test_an_extended_language_has_the_models_form_of_phones(make, tmp_path):
    model = make("PAIN p \u0303e\nFIN f e\u0303\n")
    words = tmp_path / "words.txt"
    words.write_text("FAIM f \u1ebd\n")
    extend_lang(model, words, tmp_path / "more", options=LangOptions())
    assert "FAIM f e\u0303" in (tmp_path / "more/lexicon.txt").read_text()


@pytest.mark.parametrize(
    ("text", "phones"),
    [
        ("six s 1 k s\nbird b 3\nfat f { t\n", "s 1 k s"),  # X-SAMPA
        ("six 0.5 s 1 k s\nsix 1.0 s 6 k s\nex 0.5 2 6 9 @\n", "s 1 k s"),
        ("ma 0.5 m a 55\nma 1.0 m a 214\n", "m a 55"),  # tones
    ],
)
def test_integers_without_a_point_may_be_phones(tmp_path, text, phones):
    path = tmp_path / "lexicon.txt"
    path.write_text(text)
    entries = read_lexicon(path).entries
    assert entries[0].phones == tuple(phones.split())
    assert len(entries[-1].phones) == text.splitlines()[-1].count(" ") - ("." in text)


def entries(path, text, **options):
    path.write_text(text, encoding="utf-8")
    return [
        (e.word, e.probability, " ".join(e.phones))
        for e in read_lexicon(path, **options).entries
    ]


def test_an_integer_1_is_a_probability_where_others_are(tmp_path):
    path = tmp_path / "lexicon.txt"
    found = entries(path, "THE 1 DH AH\nTHE 0.5 DH IY\nA AH\n")
    assert found == [("THE", 1, "DH AH"), ("THE", 0.5, "DH IY"), ("A", 1, "AH")]
    assert entries(path, "a 1\nthe D 1\n") == [("a", 1, "1"), ("the", 1, "D 1")]


def test_words_of_many_looks_stay(tmp_path):
    words = [
        "#hashtag",
        "(laughs)",
        "[noise]",
        "<noise>",
        "word(foreign)",
        "!EXCLAMATION-POINT",
        "'BOUT",
        '"CLOSE-QUOTE',
        ";SEMI-COLON",
        "f(2)",
        "{BRACE",
        ",COMMA",
        "%PERCENT",
    ]
    found = entries(tmp_path / "x.txt", "".join(f"{word} AH B\n" for word in words))
    assert [word for word, *_ in found] == words


def test_variants_fold_beside_another_number_or_where_the_file_does_so(tmp_path):
    path = tmp_path / "lexicon.txt"
    assert {w for w, *_ in entries(path, "A(1) a\nA(2) b\n")} == {"A"}
    assert {w for w, *_ in entries(path, "A a\nA(2) b\nB(3) c\n")} == {"A", "B"}
    assert {w for w, *_ in entries(path, "A a\nB(3) c\n")} == {"A", "B(3)"}


def test_equal_words_and_phones_in_other_normal_forms_are_one(tmp_path, caplog):
    text = (
        "caf\u00e9 k a f e\u0301\ncafe\u0301 k a f \u00e9\nnai\u0308f n\n"
        "\u0646\u200c\u0627 n\n"
    )
    with caplog.at_level("INFO"):
        found = entries(tmp_path / "lexicon.txt", text)
    assert found == [
        ("caf\u00e9", 1, "k a f e\u0301"), ("na\u00eff", 1, "n"),
        ("\u0646\u200c\u0627", 1, "n"),
    ]  # fmt: skip
    assert "words composed (Unicode NFC): 2" in caplog.text
    assert "lines with a phone in another normal form: 1" in caplog.text


def test_what_was_changed_is_told_in_one_line(tmp_path, caplog):
    text = ";;; x\nA a # one\nA(2) b\nB [B] a\nC [D] \u0062\nZ\u200b a\n"
    with caplog.at_level("INFO"):
        entries(tmp_path / "lexicon.txt", text)
    assert [r.getMessage().split(": ", 1)[1] for r in caplog.records] == [
        "comment lines passed over: 1, comments cut off: 1, output symbols [..] that "
        "are the word, left out: 1, output symbols [..] other than the word, left out: "
        "1, words freed of invisible characters: 1, variants like WORD(2) made the "
        "word: 1"
    ]


def many(line):
    return "".join(line.format(n, chr(97 + n) * 3) for n in range(25))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A a\nB b 0.13\n", "line 2: word B: phone 0.13 is a number; no columns"),
        ("A 0.9 0.13 a\n", "line 1: word A: phone 0.13 is a number; 1 column of"),
        ("A 0.9 0.1 1.0 1.0 1.0 a\n", "phone 1.0 is a number; 4 columns"),
        ("A a 1020\nB b\n", "line 1: word A: phone 1020 is a number"),
        ("A 0.0 a\nB b\n", "line 1: word A: 0.0 is not a probability above 0"),
        ("A a\nB 1.2 b\n", "line 2: word B: 1.2 is not a probability above 0"),
        ("A -0.3 a\n", "line 1: word A: -0.3 is not a probability above 0"),
        ("A 0 a\nB 0.5 b\n", "line 1: word A: 0 is not a probability above 0"),
        ("A 2 a\nB 0.5 b\n", "line 1: word A: 2 is not a probability above 0"),
        ("A 0,99 a\n", "0,99 is not a probability above 0 and at most 1 - write a point"
         ", not a comma: 0.99"),
        ("A 1.0 0.0 1.0 1.0 a\n", "0.0 is not a probability of silence above 0"),
        ("A 1.0 1.0 1.0 1.0 a\n", "1.0 is not a probability of silence above 0 and"),
        ("A 1.0 0.5 0.0 1.0 a\n", "0.0 is not a correction of silence before"),
        ("A 1.0 0.5 1.0 -1.0 a\n", "-1.0 is not a correction of no silence before"),
        ("A 1.0 0.5 1.0 1.0\n", "line 1: word A has no pronunciation"),
        ("A 1 a\nB b 1\nC 0.5 c\n", "line 1: word A: 1 may be a probability or a"),
        ("A 17 a\nB 3 b\n", "line 1: word A: 17 is a number, as follows the word on"),
        ("A @-1.25 a\n", "line 1: word A: phone @-1.25 is a number"),
        ("bar b # n\nnan n # n\n", "line 1: word bar: # may begin a comment, or be a "
         "phone"),
        ("spa s p #\n", "line 1: word spa: # may begin a comment"),
        ("A a\n# a\n", "line 2: word #: # may begin a comment, or be a word"),
        ("new york\tn uw\n", "line 1: a blank is in the word 'new york' before the"),
        ("new\tyork\tn uw y\nnew\tn uw\nyou\ty uw\n", "line 1: word new: 'york'"),
        ("cat\tNN\tk ae t\ndog\tNN\td ao g\n", "line 1: word cat: 'NN' stands between"),
        ("word\t/w\u025cd/\n", "line 1: word word: /w\u025cd/ is a transcription"),
        ("tomato\t/t\u0259/, /t\u0254/\n", "is a transcription between slashes"),
        ("ONE,W AH N\nTWO,T UW\n", "line 1: this is a table with commas"),
        ('"ONE";"W AH N"\n', "line 1: this is a table with semicolons"),
        ("ortho\tphon\tfreq\na\ta\t18.05\n", "line 1: this is a table with a line of"),
        ('<?xml version="1.0"?>\n', "line 1: this is XML"),
        ('{"one": "w ah n"}\n', "line 1: this is JSON"),
        ('("one" nil (((w ah n) 1)))\n', "line 1: this is a lexicon of Festival"),
        ("% NS_B\n<s> sil\n", "line 1: this is a vocabulary of a Julius grammar"),
        ("0 [one] w ah\n1 [two] t uw\n", "line 1: the words are numbers of categories"),
        ("A [a] [a] b\n", "line 1: word A: [a] may be a phone, or the output"),
        ("ONE w ah n sp\nTWO t uw sp\n", "line 1: word ONE: its last phone is sp"),
        (many("w{}\t{}\n"), "line 1: word w0: aaa seems to be a whole pronunciation"),
        ("A a\u200bb\n", "word A: phone 'a\\u200bb' has a character that can't be"),
        ("\u200b a\n", "line 1: word '\\u200b' has control characters, or nothing"),
        ("A\x07 a\n", "line 1: word 'A\\x07' has control characters"),
        ("A #nonterm:x\n", "#nonterm:x is a reserved symbol, not a phone"),
        ("<s> AH\n", "line 1: <s> is a reserved symbol"),
        (b"A a\nCAF\xc9 k\n", "line 2 is not UTF-8"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "lexicon.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError) as caught:
        read_lexicon(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    ["<s> 0.2\n", SILPROB.replace("0.99", "1.0"), SILPROB + "x 1\n", "<s>\n", "a b\n"],
)
def test_a_garbled_file_of_silence_is_refused(tmp_path, text):
    (tmp_path / "silprob.txt").write_text(text)
    (tmp_path / "lexicon.txt").write_text("A 1.0 0.5 1.0 1.0 a\n")
    with pytest.raises(UserError, match=r"silprob\.txt: .*(is missing|is not )"):
        read_lexicon(tmp_path / "lexicon.txt")
    (tmp_path / "lexicon.txt").write_text("A 1.0 a\n")  # tells nothing of silence
    assert read_lexicon(tmp_path / "lexicon.txt").sentence is None


def table(rows):
    """Lines like those of Lexique: word, phones in one piece, syllables, frequency."""
    names = [f"{chr(97 + n % 26)}{chr(97 + n // 26)}b" for n in range(rows)]
    return "".join(f"{n}er\t{n}E\t{n[0]}-{n[1:]}E\t{len(n)}.5\n" for n in names)


def test_tables_without_titles_are_refused(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text(table(20))
    with pytest.raises(UserError, match="line 1: this is a table with tabs between"):
        read_lexicon(path)
    path.write_text("".join(f"w{n}\t{'ab'[n % 2]}\tc\n" for n in range(30)))
    assert read_lexicon(path).phones == ["a", "b", "c"]


def test_marks_that_may_be_phones_are_left_out_only_between_phones(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("".join(f"w{n} a = b\n" for n in range(20)))
    assert read_lexicon(path).phones == ["a", "b"]
    path.write_text("".join(f"w{n} a = b\n" for n in range(20)) + "zu = u\n")
    assert read_lexicon(path).phones == ["=", "a", "b", "u"]
    path.write_text("a.b a . b\npause .\n")
    assert read_lexicon(path).phones == [".", "a", "b"]


def test_numbers_are_phones_if_that_is_said(tmp_path):
    path = tmp_path / "lexicon.txt"
    found = entries(path, "A 17 a\nB 1 b\n", has_probabilities=False)
    assert [phones for *_, phones in found] == ["17 a", "1 b"]
    with pytest.raises(UserError, match=r"phone 0\.5 is a number"):
        entries(path, "A 0.5 a\n", has_probabilities=False)


def test_words_may_be_their_phones(tmp_path):
    found = entries(tmp_path / "lexicon.txt", many("P{0} p{0}\n"))
    assert len(found) == 25
