"""Inputs in the forms that people and tools write: the same results, or one line.

Each form is a change to a small corpus. It must give the corpus, lang directory and G
of the plain form (then every later stage gives the same), or the one line that is
expected, from the doctor and from the run.
"""

import re
import unicodedata

import pytest
from reference.input_forms import PHONES, TEXTS, Digits, doctor, outcome

from latflow.errors import UserError

LOWER = {utterance: text.lower() for utterance, text in TEXTS.items()}
# Ids of the folder's files, in the order of those of the plain form.
ROWS = [("path", "text", "speaker")] + [
    (f"{utterance}.wav", text, utterance[:3]) for utterance, text in TEXTS.items()
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return outcome(Digits(tmp_path_factory.mktemp("plain") / "x"))


def texts(change):
    """Return transcripts of which each was changed."""
    return {utterance: change(text) for utterance, text in TEXTS.items()}


def in_folder(change, **how):
    """Return a form: a folder of audio whose transcripts were changed."""
    return lambda digits: digits.as_folder(texts(change), **how)


def in_text(*changes):
    """Return a form: a Kaldi directory whose transcripts were changed."""

    def form(digits):
        rows = texts(lambda t: [t := change(t) for change in changes][-1])
        digits.write("data/text", "".join(f"{u} {t}\n" for u, t in rows.items()))

    return form


def in_table(rows=ROWS, name="table.tsv", separator="\t", **source):
    """Return a form: a table."""
    return lambda digits: digits.as_table(rows, name, separator, **source)


def encoded(*names, encoding="utf-8", end="\n", start=""):
    """Return a form: files in another encoding, with other ends of lines."""

    def form(digits):
        for name in names:
            text = start + digits.text(name).replace("\n", end)
            digits.write(name, text, encoding)

    return form


def replaced(name, *pairs):
    """Return a form: a file in which texts are replaced by others."""

    def form(digits):
        text = digits.text(name)
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        digits.write(name, text)

    return form


def both(*forms):
    """Return a form: several after each other."""

    def form(digits):
        for each in forms:
            each(digits)

    return form


def lower_lexicon(digits):
    """Write a lexicon and a language model in lower case."""
    digits.write(
        "lexicon.txt", "".join(f"{w.lower()} {p}\n" for w, p in PHONES.items())
    )
    for word in PHONES:
        digits.change("lm.arpa", lambda t, w=word: t.replace(w, w.lower()))


def manifests(change):
    """Return a form: Lhotse manifests of which each pair of lines was changed."""
    return lambda digits: digits.as_manifests(change)


TABLES = ("data/text", "data/wav.scp", "data/utt2spk")
ALL = (*TABLES, "lexicon.txt", "lm.arpa")
# Forms that give what the plain form gives.
SAME = {
    # transcripts of a folder
    "folder": in_folder(str),
    "folder .lab": in_folder(str, suffix="lab"),
    "lower case": in_folder(str.lower),
    "capitalized": in_folder(str.title),
    "sentences": in_folder(lambda t: f"{t.capitalize()}."),
    "typographic apostrophes": in_folder(lambda t: t.replace("'", "’")),
    "modifier letters": in_folder(lambda t: t.replace("'", "ʼ")),
    "commas": in_folder(lambda t: t.replace(" ", ", ") + "!"),
    "commas without blanks": in_folder(lambda t: t.replace(" ", ",")),
    "dashes": in_folder(lambda t: t.replace(" ", "—")),
    "spaced dashes": in_folder(lambda t: t.replace(" ", " – ")),
    "ellipses": in_folder(lambda t: t.replace(" ", "… ") + "..."),
    "quoted": in_folder(lambda t: f"“{t}”"),
    "quoted words": in_folder(lambda t: " ".join(f"‘{w}’" for w in t.split())),
    "guillemets": in_folder(lambda t: f"« {t} »"),
    "underlined": in_folder(lambda t: " ".join(f"_{w}_" for w in t.split())),
    "starred": in_folder(lambda t: f"*{t}* #~"),
    "hyphenated": in_folder(lambda t: t.replace(" ", "-")),
    "no-break hyphens": in_folder(lambda t: t.replace(" ", "‑")),
    "no-break blanks": in_folder(lambda t: t.replace(" ", "\u00a0")),
    "ideographic blanks": in_folder(lambda t: t.replace(" ", "\u3000")),
    "Arabic marks": in_folder(lambda t: t.replace(" ", "، ") + "؟"),
    "Hindi marks": in_folder(lambda t: f"{t}।"),
    "Japanese marks": in_folder(lambda t: f"「{t.replace(' ', '、')}」。"),
    "Chinese marks": in_folder(lambda t: t.replace(" ", "，") + "！"),
    "full-width letters": in_folder(
        lambda t: "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in t)
    ),
    "soft hyphens": in_folder(lambda t: t.replace("EV", "E\u00adV")),
    "byte order marks": in_folder(lambda t: t.encode("utf-8-sig")),
    "UTF-16": in_folder(lambda t: t.encode("utf-16")),
    "several lines": in_folder(lambda t: t.replace(" ", "\r\n") + "\r\n"),
    # Kaldi's data directories
    "text in lower case": in_text(str.lower),
    "text with marks": in_text(lambda t: t.replace(" ", ", ") + "."),
    "text with apostrophes": in_text(lambda t: t.replace("'", "’")),
    "lexicon in lower case": lower_lexicon,
    "tables with byte order marks": encoded(*TABLES, encoding="utf-8-sig"),
    "tables in UTF-16": encoded(*TABLES, encoding="utf-16"),
    "all files with CRLF": encoded(*ALL, end="\r\n"),
    "all files with CR": encoded(*ALL, end="\r"),
    "all files as Windows writes them": encoded(*ALL, end="\r\n", encoding="utf-8-sig"),
    "tabs": both(*(replaced(name, (" ", "\t")) for name in TABLES)),
    "no-break blanks in tables": both(
        *(replaced(name, (" ", "\u00a0")) for name in TABLES)
    ),
    "empty lines": both(*(replaced(name, ("\n", "\n\n")) for name in TABLES)),
    # tables
    "TSV": in_table(),
    "CSV": in_table(name="table.csv", separator=","),
    "TSV with byte order mark": both(
        in_table(), encoded("table.tsv", encoding="utf-8-sig", end="\r\n")
    ),
    "TSV in UTF-16": both(in_table(), encoded("table.tsv", encoding="utf-16")),
    "TSV in lower case": in_table(
        [ROWS[0], *((p, t.lower(), s) for p, t, s in ROWS[1:])]
    ),
    # Lhotse's manifests
    "manifests": manifests(lambda recording, supervision: None),
    "manifests in lower case": manifests(
        lambda recording, supervision: supervision.update(
            text=supervision["text"].lower()
        )
    ),
}
# Forms that both refuse, and what the line has.
REFUSED = {
    "case kept": (
        both(in_text(str.lower), lambda d: d.train.update(case="keep")),
        r"none of the 18 words .*'one'; the lexicon has 'ONE' - set `case`",
    ),
    "another language": (
        in_text(lambda t: "eins zwei"),
        r"none of the 12 words of the transcripts, e.g. 'EINS'",
    ),
    "reserved word": (
        replaced("data/text", ("ONE TWO THREE\n", "ONE <s> THREE\n")),
        r"(?=.*ann-1).*reserved symbol <s>",
    ),
    "text in Latin-1": (
        lambda d: d.change("data/text", lambda t: f"{t}x É\n", encoding="latin-1"),
        r"text: x: line 7 is not UTF-8",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_form_gives_the_same_as_the_plain_one(plain, tmp_path, name):
    digits = Digits(tmp_path / "x")
    SAME[name](digits)
    assert doctor(digits) == []
    found = outcome(digits)
    if name == "lexicon in lower case":  # the same, in its letters
        lower = [(who, text.lower(), audio) for who, text, audio in plain.utterances]
        assert found.utterances == lower
        return
    assert found.utterances == plain.utterances
    assert found.lang == plain.lang
    assert found.grammar == plain.grammar


@pytest.mark.parametrize("name", REFUSED)
def test_form_is_refused_in_one_line_by_doctor_and_run(tmp_path, name):
    form, line = REFUSED[name]
    digits = Digits(tmp_path / "x")
    form(digits)
    with pytest.raises(UserError, match=line):
        outcome(digits)
    found = doctor(digits)
    assert len(found) == 1
    assert re.search(line, found[0]), found


def test_names_that_are_no_ids_are_changed_and_noted(plain, tmp_path):
    def change(recording, supervision):
        number = recording["id"][-1]
        name = f"{supervision['speaker']} van Dam {number}"
        recording["id"] = supervision["id"] = supervision["recording_id"] = name
        supervision["speaker"] = unicodedata.normalize("NFC", "Gé Dam ") + name[:3]

    digits = Digits(tmp_path / "x")
    digits.as_manifests(change)
    found = outcome(digits)
    assert [u[1:] for u in found.utterances] == [u[1:] for u in plain.utterances]
    assert [u[0] for u in found.utterances] == ["Gé_Dam_ann"] * 3 + ["Gé_Dam_bob"] * 3
    ledger = (tmp_path / "x/out/corpus/ledger.jsonl").read_text(encoding="utf-8")
    assert ledger.count("is called") == 14
