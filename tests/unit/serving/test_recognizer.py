"""A package in Python does what docs/python.md says, with its very code."""

import re

import numpy as np
import pytest
import soundfile

import latflow
from latflow.errors import UserError


@pytest.fixture(scope="module")
def recognizer(package):
    return latflow.load(package)


@pytest.fixture(scope="module")
def spoken(digits, recognizer):
    """A recording that the small system recognizes, and what is said there."""
    pairs = ((path, digits.texts[name]) for name, path in digits.audio.items())
    return next(p for p in pairs if recognizer.transcribe(p[0]).text == p[1])


def test_the_page_runs_as_it_stands(
    repository, package, spoken, tmp_path, monkeypatch, capsys
):
    (tmp_path / "results/mine/package").mkdir(parents=True)
    (tmp_path / "results/mine/package/chain").symlink_to(package)
    samples, rate = soundfile.read(spoken[0], dtype="int16")
    soundfile.write(tmp_path / "a.wav", samples, rate)
    monkeypatch.chdir(tmp_path)
    page = (repository / "docs/python.md").read_text()
    page = page.replace("sample_rate=8000", f"sample_rate={rate}")
    names = {}
    for block in re.findall("```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["result"].text == spoken[1]
    assert names["last"].segment.best.text == spoken[1]
    assert " ".join(word.word for word in names["aligned"].words) == spoken[1]
    assert (names["errors"].words, names["errors"].errors) == (3, 2)
    assert "66.7 % of 3 words: 1 wrong, 1 missing" in capsys.readouterr().out


def test_times_of_an_alignment_are_those_of_recognition(recognizer, spoken):
    recognized = recognizer.transcribe(spoken[0], segmentation={"type": "none"})
    (segment,) = recognized.segments
    aligned = recognizer.align(spoken[0], spoken[1].capitalize() + ".")
    starts = [word.start for word in aligned.words]
    assert starts == pytest.approx([w.start for w in segment.best.words], abs=0.05)
    info = soundfile.info(spoken[0])
    assert aligned.phones[-1].end == pytest.approx(info.frames / info.samplerate)


def test_rates_are_brought_to_the_models(recognizer, spoken, tmp_path):
    samples, rate = soundfile.read(spoken[0])
    soundfile.write(tmp_path / "twice.wav", np.repeat(samples, 2), 2 * rate)
    assert recognizer.align(tmp_path / "twice.wav", spoken[1]).words is not None


def test_words_of_a_lexicon_of_its_own(recognizer, spoken, package, tmp_path):
    lines = (package / "lang/lexicon.txt").read_text()
    first, *rest = spoken[1].split()
    phones = next(ln.split()[1:] for ln in lines.splitlines() if ln.split()[0] == first)
    base = [re.sub("_[BIES]$", "", phone) for phone in phones]
    lexicon = tmp_path / "more.txt"
    lexicon.write_text(f"{lines}\nNEWWORD {' '.join(base)}\n")
    text = " ".join(["NEWWORD", *rest])
    aligned = recognizer.align(spoken[0], text, lexicon=lexicon)
    assert aligned.words[0].word == "NEWWORD"
    with pytest.raises(UserError, match="no pronunciation of NEWWORD"):
        recognizer.align(spoken[0], text)


def test_refusals(recognizer, spoken, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        recognizer.transcribe(tmp_path / "none.wav")
    with pytest.raises(UserError, match="chanel"):
        recognizer.transcribe(spoken[0], chanel=1)
    with pytest.raises(UserError, match="cannot be aligned: too short"):
        recognizer.align(spoken[0], " ".join([spoken[1]] * 40))
    with pytest.raises(UserError, match="have no reference"):
        latflow.score({"a": "one"}, {"b": "one"})
    with pytest.raises(AttributeError, match="teapot"):
        latflow.teapot  # noqa: B018
