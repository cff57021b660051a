"""ARPA files as tools and people write them: all of them give one G, or one line."""

import bz2
import gzip
import io
import lzma
import unicodedata
import zipfile

import pytest

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lang.arpa import perplexity, read_arpa
from latflow.lang.grammar import check_arpa, grammar_graph, write_grammar
from latflow.lang.ngram_counts import text_sentences

MODEL = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-99\t<s>\t-0.5
-0.5\t</s>
-0.4\ta\t-0.2
-0.6\tb\t-0.1
-0.7\tcafé\t-0.3

\\2-grams:
-0.1\t<s> a\t-0.1
-0.2\ta b\t-0.4
-0.3\tb </s>
-0.25\ta café\t-0.2

\\3-grams:
-0.1\t<s> a b
-0.1\ta b </s>

\\end\\
"""
NATURAL = """\\data\\
ngram 1=4

\\1-grams:
0 <s>
-0.6931472 a
-1.3862944 b
-1.3862944 </s>

\\end\\
"""
PROSE = """#### This is a CLOSED-vocabulary model
Beginning of data mark: \\data\\
ngram 1=nr            # number of 1-grams
\\1-grams:
p_1     wd_1 bo_wt_1
end of data mark: \\end\\

"""
WORDS = ["<eps>", "a", "b", "café", "#0", "<s>", "</s>"]
WORD_IDS = {word: number for number, word in enumerate(WORDS)}


def changed(old, new, count=-1):
    """The model with something else in place of a part."""
    assert old in MODEL
    return MODEL.replace(old, new, count)


FORMS = {
    "crlf": MODEL.replace("\n", "\r\n"),
    "cr": MODEL.replace("\n", "\r"),
    "byte order mark": "\ufeff" + MODEL.replace("\n", "\r\n"),
    "utf-16": MODEL.encode("utf-16"),
    "kenlm": changed("</s>\n", "</s>\t0\n").replace("-99\t<s>", "0\t<s>"),
    "lmtool": changed("-0.5\t</s>", "-0.5 </s> -0.3010"),
    "cmu": PROSE + changed("-99\t<s>", "-99.999 <s>"),
    "blanks": changed("\t", "  \t ").replace("\n-", "\n \t-"),
    "words with blanks of other scripts": changed("1=5", "1=7").replace(
        "-0.5\t</s>\n", "-0.5\t</s>\n-3\t10\u00a0000\t-0.2\n-3\t\u3000\t-0.2\n"
    ),
    "blank lines": changed("\n-0", "\n\n-0"),
    "no blank lines": changed("\n\n", "\n"),
    "blanks in the header": changed("ngram 1=5", "ngram  1 =  5"),
    "capitals": changed("\\data\\", "\\Data\\")
    .replace("\\end\\", "\\END\\")
    .replace("-grams:", "-GRAMS:")
    .replace("ngram", "NGRAM"),
    "comments": changed("\n\n", "\n\n# -0.3\tb\n#\n")
    .replace("\nngram", "\n## counts\nngram")
    .replace("-0.5\t</s>\n", "-0.5\t</s>\n# -2\tc\n"),
    "weights of 0 at the longest": changed("<s> a b\n", "<s> a b\t-0.0\n"),
    "no end of the last line": MODEL.rstrip("\n"),
    "letters and marks apart": unicodedata.normalize("NFD", MODEL),
    "minus infinity": changed("-99\t<s>", "-inf\t<s>"),
    "text behind the end": MODEL + "some more\n",
    "over the ends of sentences": changed("2=4", "2=6").replace(
        "-0.3\tb </s>\n", "-0.3\tb </s>\n-0.1\t</s> <s>\t-9\n-0.2\t<s> <s>\t-9\n"
    ),
    "gzip without its suffix": gzip.compress(MODEL.encode()),
    "bzip2": bz2.compress(MODEL.encode()),
    "xz": lzma.compress(MODEL.encode()),
}


def write(path, content):
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


def grammar_of(folder, content):
    """G of a file, as what tells it from others."""
    arpa = write(folder / "lm", content)
    write_grammar(arpa, folder, WORD_IDS, folder / "G.fst")
    graph = Graph.load(folder / "G.fst")
    return graph.start, graph.arcs.tolist(), graph.final.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same_grammar_and_perplexity(tmp_path, form):
    plain = grammar_of(tmp_path, MODEL)
    assert grammar_of(tmp_path, FORMS[form]) == plain
    assert len(plain[1]) == 4 + 2 + 1 + 1 + 6  # words, but not <s> and </s>; back-offs
    score = perplexity(read_arpa(tmp_path / "lm"), [["a", "b"]])
    assert score.log10_prob == pytest.approx(-0.3)
    coverage = check_arpa(tmp_path / "lm", WORDS)
    assert coverage.known == {"a", "b", "café"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (FORMS["letters and marks apart"], "2 lines put into Unicode's normal form"),
        (FORMS["minus infinity"], "1 lines with -inf, which is taken as -99"),
        (FORMS["comments"], "12 comment lines passed over"),
        (FORMS["text behind the end"], "is not read (line 24)"),
        (FORMS["over the ends of sentences"], "2 of 6 2-grams left out: <s> stands"),
        (changed("-0.1\ta b </s>", "1.2e-07\ta b </s>"), "just above 0 are taken as 0"),
    ],
)
def test_what_is_changed_or_left_out_is_counted(tmp_path, caplog, content, told):
    caplog.set_level("INFO")
    grammar_of(tmp_path, content)
    assert told in caplog.text


def zipped():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("lm.arpa", MODEL)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(), "is a zip archive - unpack it"),
        (b"mmap lm http://kheafield.com/code\n\0", "is a binary model of KenLM"),
        (b"\x11\0\0\0Darpa Trigram LM\0", "is a binary model of Sphinx"),
        (b"Trie Language Model\0", "is a binary model of Sphinx"),
        ("\niARPA\n" + MODEL, "is an intermediate file of IRSTLM"),
        (gzip.compress(MODEL.encode() * 9)[:-9], "is not a whole gzip file"),
        (lzma.compress(MODEL.encode())[:-9], "is not a whole xz file"),
        (b"BZh91AY&SY" + b"x" * 40, "is not a whole bzip2 file"),
        ("a\nb\n", "not an ARPA file"),
        (changed("a café", "a b"), "line 17: the 2-gram 'a b' comes twice, first in"),
        (MODEL.encode("latin-1"), "line 11 is not UTF-8"),
        (MODEL.encode("utf-16-le"), "line 1 has a zero byte"),
        (changed("-0.4\ta", "0.4\ta"), "line 9: a log-probability is positive"),
        (changed("ngram 1=5", "mine\nngram 1=5"), "line 2: 'ngram 1=COUNT' expected"),
        (changed("</s>\n", "</s>\t150\n"), "line 8: a back-off weight of 10^150 is"),
        ("\\interpolated\n" + MODEL, "is an interpolated model of VariKN"),
        ("\\data\\\nngram 1=5\n", "the file ends in the header"),
        ("<!DOCTYPE html>\n<html></html>\n", "is a page of the web"),
        (changed("<s>", "<S>"), "sentence start <s>; it has <S> - write <s> for <S>"),
        (changed("<s>", "<sos>"), "it has <sos> - write <s> for <sos>"),
        (changed("</s>", "!EXIT"), "it has !EXIT - write </s> for !EXIT"),
        (NATURAL, "exp(x) add up to 1.0000, their 10^x to 0.2849 - divide all"),
        (changed("\tb\t", "\t<eps>\t"), "has the word <eps>, which is a reserved"),
        (changed("\tb\t", "\t#0\t"), "has the word #0, which is a reserved symbol"),
        (
            MODEL.upper()
            .replace("<S>", "<s>")
            .replace("</S>", "</s>")
            .replace("NGRAM", "ngram")
            .replace("-GRAMS", "-grams"),
            "the model has A, the lexicon a - write the model (lm.path)",
        ),
    ],
)
def test_what_is_no_model_for_the_lexicon_is_told_in_a_line(tmp_path, content, message):
    with pytest.raises(UserError) as caught:
        grammar_of(tmp_path, content)
    assert message in str(caught.value)
    assert str(tmp_path / "lm") in str(caught.value)


def test_words_that_coincide_in_normal_form_are_refused(tmp_path):
    twice = unicodedata.normalize("NFD", "-0.7\tcafé\t0\n")
    text = changed("1=5", "1=6").replace("-0.7\t", twice + "-0.7\t")
    with pytest.raises(UserError, match=r"line 12: the 1-gram 'café' comes twice"):
        read_arpa(write(tmp_path / "lm", text))


def test_the_check_reads_single_words_only(tmp_path):
    text = changed("-0.2\ta b", "often a b")
    assert check_arpa(write(tmp_path / "lm", text), ["a"]).unknown == {"b", "café"}
    with pytest.raises(UserError, match="line 15: a log-probability is not a number"):
        read_arpa(tmp_path / "lm")
    with pytest.raises(UserError, match="the model has a, the lexicon A"):
        check_arpa(tmp_path / "lm", ["A", "B"])


def test_some_words_in_another_case_are_logged(tmp_path, caplog):
    check_arpa(write(tmp_path / "lm", MODEL), ["a", "B"])
    assert "1 of these words are in the lexicon in another case, e.g. b as B" in (
        caplog.text
    )


def test_models_mostly_in_another_case_are_refused(tmp_path):
    text = changed("1=5", "1=8").replace("-0.7\t", "-2\tX\n-2\tx\n-2\tY\n-0.7\t", 1)
    arpa = write(tmp_path / "lm", text)
    with pytest.raises(UserError, match="in the lexicon: 1, and in another case 2: "):
        check_arpa(arpa, ["a", "B", "CAFÉ"])
    assert check_arpa(arpa, ["a", "x", "B"]).other_case == {"X": "x", "b": "B"}


def test_the_unknown_word_that_tools_add_is_no_word(tmp_path, caplog):
    text = changed("1=5", "1=6").replace("-0.7\t", "-2\t<unk>\n-0.7\t", 1)
    words = ["a", "b", "café", "<UNK>"]
    assert not check_arpa(write(tmp_path / "lm", text), words).unknown
    assert not caplog.text
    with pytest.raises(UserError, match="the model has e.g. a"):
        check_arpa(tmp_path / "lm", ["x", "<UNK>"])


def test_words_txt_may_have_letters_and_marks_apart(tmp_path):
    apart = {unicodedata.normalize("NFD", w): number for w, number in WORD_IDS.items()}
    model = read_arpa(write(tmp_path / "lm", MODEL))
    ours, theirs = grammar_graph(model, apart), grammar_graph(model, WORD_IDS)
    assert ours.arcs.tolist() == theirs.arcs.tolist()


def test_back_off_weights_before_an_empty_section_count(tmp_path):
    text = changed("3=2", "3=0").replace("-0.1\t<s> a b\n-0.1\ta b </s>\n", "")
    model = read_arpa(write(tmp_path / "lm", text))
    assert [len(level.word) for level in model.levels] == [5, 4, 0]
    # <s> a: -0.1; then both back off: -0.1 - 0.2 - 0.4; a </s>: -0.1 - 0.2 - 0.5
    score = perplexity(model, [["a", "a"]])
    assert score.log10_prob == pytest.approx(-0.1 - 0.7 - 0.7)


def test_texts_are_composed_and_reserved_symbols_name_their_line(tmp_path):
    path = write(tmp_path / "text", unicodedata.normalize("NFD", "a\r\ncafé b\r\n"))
    assert list(text_sentences(path)) == [["a"], ["café", "b"]]
    for symbol in ("<s>", "</s>", "<eps>", "#0"):
        write(path, f"a\n\na {symbol} b\n")
        with pytest.raises(UserError, match=f"line 3: the text .* symbol {symbol}"):
            list(text_sentences(path))
