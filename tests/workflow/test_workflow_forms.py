"""Inputs in the forms that people and tools write: the same results, or one line.

Each form is a change to a small corpus. It must give the corpus, lang directory and G
of the plain form (then every later stage gives the same), or the one line that is
expected, from the doctor and from the run.
"""

import bz2
import gzip
import lzma
import re
import struct
import unicodedata

import numpy as np
import pytest
import soundfile
from fixtures.input_forms import (
    PHONES,
    RATE,
    TEXTS,
    Digits,
    doctor,
    outcome,
    samples,
)

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


def lexicon(entry, *, before="", after=""):
    """Return a form: a lexicon whose lines are made of words and their phones."""

    def form(digits):
        rows = [entry(word, phones) for word, phones in PHONES.items()]
        digits.write("lexicon.txt", before + "".join(f"{r}\n" for r in rows) + after)

    return form


def arpa(*changes):
    """Return a form: an ARPA file whose lines were changed, `None` for one to drop."""

    def form(digits):
        rows = digits.text("lm.arpa").splitlines()
        for change in changes:
            rows = [new for row in rows if (new := change(row)) is not None]
        digits.write("lm.arpa", "\n".join(rows) + "\n")

    return form


def compressed(name, module, suffix):
    """Return a form: a file that is compressed, whatever its name."""

    def form(digits):
        content = (digits.top / name).read_bytes()
        digits.write(f"{name}{suffix}", module.compress(content))
        section = {"lexicon.txt": "lang", "lm.arpa": "lm"}[name]
        key = {"lexicon.txt": "lexicon", "lm.arpa": "path"}[name]
        digits.config[section][key] = str(digits.top / f"{name}{suffix}")

    return form


def in_wav(change):
    """Return a form: WAV files whose bytes were changed."""

    def form(digits):
        for utterance in TEXTS:
            path = digits.top / f"data/{utterance}.wav"
            path.write_bytes(change(path.read_bytes()))

    return form


def with_size(size):
    """Return a change of a WAV file: another size of its data in the header."""

    def change(content):
        at = content.index(b"data") + 4
        told = len(content) - at - 4 if size is None else size
        return content[:at] + struct.pack("<I", told) + content[at + 4 :]

    return change


def as_format(suffix, **how):
    """Return a form: audio in another format without loss."""

    def form(digits):
        for utterance in TEXTS:
            samples, rate = soundfile.read(
                digits.top / f"data/{utterance}.wav", dtype="int16"
            )
            soundfile.write(
                digits.top / f"data/{utterance}{suffix}", samples, rate, **how
            )
        digits.change("data/wav.scp", lambda t: t.replace(".wav", suffix))

    return form


def in_two_channels(digits):
    """Write audio of two channels, the second silent, and name none."""
    for utterance in TEXTS:
        path = digits.top / f"data/{utterance}.wav"
        samples, rate = soundfile.read(path, dtype="int16")
        both = np.stack([np.zeros_like(samples), samples], axis=1)
        soundfile.write(path, both, rate)


def in_segments(channel):
    """Return a form: audio of two channels, one named in `segments`."""

    def form(digits):
        in_two_channels(digits)
        rows = [(u, f"{len(samples(i)) / RATE}") for i, u in enumerate(TEXTS)]
        text = "".join(f"{u} {u} 0 {end}{channel}\n" for u, end in rows)
        digits.write("data/segments", text)

    return form


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
    # lexica
    "lexicon with tabs": lexicon("{}\t{}".format),
    "lexicon with stray blanks": lexicon("{}  {} ".format, after="\n \n"),
    "lexicon with probabilities": lexicon("{} 1.0 {}".format),
    "lexicon with a probability on some lines": lexicon(
        lambda w, p: f"{w} 0.9 {p}" if w < "ONE" else f"{w} {p}"
    ),
    "cmudict": lexicon(
        "{}  {} # number, english".format, before=";;; a comment\n# another\n"
    ),
    "numbered variants": both(
        lexicon("{} {}".format, after="ZERO(2) Z IH R OW\nONE(02) W AH N\n")
    ),
    "HTK's output symbols": lexicon(lambda w, p: f"{w} [{w}] {p}"),
    "lexicon in UTF-16": encoded("lexicon.txt", encoding="utf-16", end="\r\n"),
    "lexicon in gzip": compressed("lexicon.txt", gzip, ".gz"),
    "lexicon with soft hyphens": replaced("lexicon.txt", ("SEVEN", "SE\u00adVEN")),
    "lexicon with silence and noise": lexicon(
        "{} {}".format, before="<SIL> SIL\n<UNK> SPN\n"
    ),
    "lexicon with a reserved word": lexicon("{} {}".format, before="<eps> SIL\n"),
    # language models
    "KenLM": arpa(lambda r: f"{r}\t0" if r.split()[1:] == ["</s>"] else r),
    "ARPA with odd blanks": arpa(lambda r: f" {r.replace(chr(9), '   ')}  "),
    "ARPA with empty lines": arpa(lambda r: f"{r}\n"),
    "ARPA without empty lines": arpa(lambda r: r or None),
    "ARPA with prose": arpa(
        lambda r: r.replace("\\data\\", "made by hand\n\n\\data\\")
    ),
    "ARPA with spaced counts": arpa(
        lambda r: r.replace("=", " = ") if r.startswith("ngram") else r
    ),
    "ARPA in gzip without its suffix": compressed("lm.arpa", gzip, ""),
    "ARPA in bzip2": compressed("lm.arpa", bz2, ".bz2"),
    "ARPA in xz": compressed("lm.arpa", lzma, ".xz"),
    "ARPA with other words": both(
        arpa(
            lambda r: "\\2-grams:" if r == "\\2-grams:" else r,
            lambda r: r.replace("ngram 1=13", "ngram 1=14"),
            lambda r: f"{r}\n-3.5\tELEVEN\t0" if r == "\\1-grams:" else r,
        )
    ),
    # audio
    "WAV of unknown size": in_wav(with_size(0)),
    "WAV as from a pipe": in_wav(with_size(0xFFFFFFFF)),
    "WAV of too small a size": in_wav(with_size(4000)),
    "FLAC": as_format(".flac"),
    "AIFF": as_format(".aiff"),
    "SPHERE": as_format(".sph", format="NIST"),
    "CAF": as_format(".caf"),
    "a channel named in segments": in_segments(" 1"),
    "a channel named for the source": both(
        in_two_channels, lambda d: d.train.update(channel=1)
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
    "number for a phone": (
        lexicon(lambda w, p: f"{w} {p} 0.5" if w == "TWO" else f"{w} {p}"),
        r"line 3: word TWO: .*0\.5",
    ),
    "blank in a word": (
        lexicon("{}\t{}".format, after="NEW YORK\tN UW Y AO R K\n"),
        r"line 12: .*NEW YORK",
    ),
    "marker of position": (
        lexicon("{} {}".format, after="END EH N_B\n"),
        r"word END: .*N_B",
    ),
    "silence in a word": (
        lexicon("{} {}".format, after="END EH SIL D\n"),
        r"word END: SIL is the name of a silence phone",
    ),
    "IPA in one piece": (
        lexicon("{}\t{}".format, after="END\t/ɛnd/\n"),
        r"line 12: .*/ɛnd/",
    ),
    "no language model": (
        lambda d: (d.top / "lm.arpa").unlink(),
        r"lm\.arpa: no such file",
    ),
    "language model in lower case": (
        arpa(lambda r: r if "\\" in r or "<" in r or "ngram" in r else r.lower()),
        r"no word of the language model is in the lexicon.* don't, the lexicon DON'T",
    ),
    "iARPA": (
        arpa(lambda r: r.replace("\\data\\", "iARPA\n\n\\data\\")),
        r"lm\.arpa: is an intermediate file of IRSTLM",
    ),
    "an n-gram twice": (
        arpa(
            lambda r: r.replace("ngram 1=13", "ngram 1=14"),
            lambda r: f"{r}\n-3.5\tTWO\t0" if r == "\\1-grams:" else r,
        ),
        r"TWO.* twice",
    ),
    "ARPA cut off": (
        arpa(lambda r: None if r == "\\end\\" else r),
        r"lm\.arpa: .*cut off",
    ),
    "ARPA with other counts": (
        arpa(lambda r: r.replace("ngram 1=13", "ngram 1=12")),
        r"12 1-grams.*13",
    ),
    "a word list for a language model": (
        lambda d: d.write("lm.arpa", "ONE\nTWO\n"),
        r"lm\.arpa: .*ARPA",
    ),
    "a channel that is not there": (
        in_segments(" 3"),
        r"channel 3",
    ),
    "WAV cut short": (
        in_wav(lambda content: content[:-3000]),
        r"cut short",
    ),
    "segments behind the end": (
        both(
            in_segments(" 1"),
            lambda d: d.change(
                "data/segments", lambda t: t.replace("0 1.0 1", "0 9 1")
            ),
        ),
        r"(?=.*ann-1).*goes from 0 s to 9 s",
    ),
    "unknown recording": (
        both(
            in_segments(" 1"),
            lambda d: d.change(
                "data/segments", lambda t: t.replace(" bob-2 ", " eve ")
            ),
        ),
        r"unknown recording eve",
    ),
    "too many bad files": (
        both(
            in_folder(str),
            lambda d: (d.top / "folder/ann/1.wav").write_bytes(b"RIFF"),
        ),
        r"skipped 1 of 6 utterances \(allowed share 0\.05\)",
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


def test_a_silent_channel_is_refused(tmp_path):
    digits = Digits(tmp_path / "x")
    in_two_channels(digits)
    assert "is on channel 0, which is silent" in doctor(digits)[0]
    with pytest.raises(UserError, match="is on channel 0, which is silent"):
        outcome(digits)


def test_filters_above_half_the_rate_are_found_by_the_doctor(tmp_path):
    digits = Digits(tmp_path / "x")
    digits.config["features"] = {"high_freq": 5000}
    assert "from 20 Hz to 5000 Hz do not fit" in doctor(digits)[0]
    digits.config["features"] = {}
    stream = {"type": "fbank", "high_freq": 4500}
    digits.config["nnet"] = {"features": {"hires": stream}}
    assert "nnet.features.hires: mel filters" in doctor(digits)[0]
