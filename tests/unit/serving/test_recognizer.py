"""A package in Python does what docs/python.md says, with its very code."""

import os
import re

import numpy as np
import pytest
import soundfile
import torch

import latflow
from latflow.align.boundary_model import CONTEXT, BoundaryModel
from latflow.cli.main import main
from latflow.errors import UserError
from latflow.serving.package_info import read_info
from latflow.serving.packaging import add_boundaries


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
    assert latflow.score({"a": "caf\u00e9"}, {"a": "cafe\u0301"}).errors == 0
    with pytest.raises(AttributeError, match="teapot"):
        latflow.teapot  # noqa: B018


def heard(recognizer, rate, samples):
    with recognizer.stream(sample_rate=rate) as stream:
        return [*stream.accept(samples), *stream.finish()][-1].segment.best.text


def test_samples_of_one_channel_in_any_form(recognizer, spoken):
    samples, rate = soundfile.read(spoken[0], dtype="int16")
    floats = samples / 32768
    forms = (
        *(floats, floats.astype(np.float32), floats.tolist()),
        *(samples.astype(">i2"), samples[:, None], floats[None]),
        *(torch.tensor(samples), torch.tensor(floats, requires_grad=True)),
    )
    for form in forms:
        assert heard(recognizer, np.int64(rate), form) == spoken[1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.astype(np.int32), "samples of type int32 - give one channel of"),
        (lambda s: s.tolist(), "samples of type int64"),
        (lambda s: (s >> 8).astype(np.uint8), "samples of type uint8"),
        (lambda s: s.tobytes(), r"bytes are not samples - np.frombuffer\(data"),
        (lambda s: np.stack([s, s], axis=1), r"samples of shape \(\d+, 2\)"),
        (lambda s: np.stack([s, s]), r"samples of shape \(2, \d+\)"),
        (lambda s: s[0], r"samples of shape \(\)"),
        (lambda s: "a.wav", r"samples of shape \(\)"),
        (lambda s: [[0.0], [0.0, 0.1]], "samples of several lengths"),
    ],
)
def test_samples_that_would_be_noise_are_refused(recognizer, spoken, make, said):
    samples, rate = soundfile.read(spoken[0], dtype="int16")
    with (
        recognizer.stream(sample_rate=rate) as stream,
        pytest.raises(UserError, match=said),
    ):
        stream.accept(make(samples))


def test_floats_of_another_scale_are_told_once(recognizer, spoken, caplog):
    samples, rate = soundfile.read(spoken[0], dtype="int16")
    heard(recognizer, rate, samples / 32768 * 4)  # loud, as it may be
    assert not caplog.records
    with recognizer.stream(sample_rate=rate) as stream:
        for _ in range(2):
            stream.accept(samples.astype(np.float32))
        assert ["beyond full scale" in w for w in stream.warnings] == [True]
    assert [r.message.partition(" which")[0] for r in caplog.records] == [
        "audio: float samples far beyond full scale,"
    ]


def test_a_channel_of_several_is_aligned(recognizer, spoken, tmp_path):
    samples, rate = soundfile.read(spoken[0])
    stereo = tmp_path / "call.wav"
    soundfile.write(stereo, np.stack([samples * 0, samples], axis=1), rate)
    alone = recognizer.align(spoken[0], spoken[1])
    assert recognizer.align(stereo, spoken[1], channel=2).words == alone.words
    for channel, said in ((1, "channel 1 is silent"), (3, "has no channel 3")):
        with pytest.raises(UserError, match=said):
            recognizer.align(stereo, spoken[1], channel=channel)


def test_paths_in_any_form(recognizer, spoken, package):
    assert latflow.load(os.fsencode(package)).transcribe(spoken[0])
    assert recognizer.transcribe(os.fsencode(spoken[0])).text == spoken[1]
    assert recognizer.align(str(spoken[0]), spoken[1]).words


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda r, a: latflow.load(None), "named by its folder, not a NoneType"),
        (lambda r, a: r.transcribe(np.zeros(9)), "named by its file, not a ndarray"),
        (lambda r, a: r.transcribe([a]), "named by its file, not a list"),
        (lambda r, a: r.transcribe(a.parent), "is a folder"),
        (lambda r, a: r.transcribe(a, threads=0), "threads: 0"),
        (lambda r, a: r.transcribe(a, threads="2"), "threads: '2'"),
        (lambda r, a: r.align(a, ["ONE"]), "the text is a list"),
        (lambda r, a: r.align(a, "ONE", lexicon={}), "by its file, not a dict"),
        (lambda r, a: latflow.score("a b", "a"), "the references are a str"),
        (lambda r, a: latflow.score({"a": ["b"]}, {}), "a: one of the references is"),
        (lambda r, a: latflow.score({"a": "b"}, {"a": None}), "hypotheses is a None"),
    ],
)
def test_what_is_no_path_or_text_is_one_line(recognizer, spoken, call, said):
    with pytest.raises(UserError, match=said):
        call(recognizer, spoken[0])


def test_what_is_imported_late_is_listed():
    assert {"load", "score"} <= set(dir(latflow))


@pytest.mark.slow
def test_gmm_systems_align_too(digits, adapted, spoken, tmp_path):
    """One that recognizes, and one that only aligns, as with `latflow align-one`."""
    path, text = spoken
    (tmp_path / "a.lab").write_text(text)
    files = (str(path), str(tmp_path / "a.lab"), str(digits.root / "lexicon.txt"))
    for name, trained in (("mono", digits), ("sat", adapted)):
        changes = {"only_aligns": True} if name == "sat" else {}
        package = trained.package(tmp_path / name, system=name, **changes)
        recognizer = latflow.load(package)
        aligned = recognizer.align(path, text)
        assert [word.word for word in aligned.words] == text.split()
        out = tmp_path / f"{name}.csv"
        assert main(["align-one", *files, str(package), str(out)]) == 0
        rows = [line.split(",") for line in out.read_text().splitlines()]
        starts = [float(row[0]) for row in rows if row[3] == "words"]
        assert starts == [round(word.start, 4) for word in aligned.words]
        if name == "sat":
            with pytest.raises(UserError, match="recognizes nothing: it adapts"):
                recognizer.transcribe(path)


def test_a_package_that_has_learnt_boundaries_sets_them(
    digits, package, spoken, tmp_path
):
    """A model that moves all boundaries by 20 ms, in Python, and in the files."""
    path, text = spoken
    info = read_info(package)
    size = 13 * len(CONTEXT)
    zeros = np.zeros
    model = BoundaryModel(
        phones=np.array(["AH"]),
        mean=zeros(size),
        scale=zeros(size),
        weight1=zeros((size + 2, 4)),
        bias1=zeros(4),
        weight2=zeros((4, 4)),
        bias2=zeros(4),
        weight3=zeros((4, 2)),
        bias3=np.array([1.0, 0.0]),  # 10 ms each time
        factors=np.array([1.0, 2.0]),
        sample_rate=np.array(info.sample_rate),
    )
    add_boundaries(package, model, tmp_path / "better")
    before = latflow.load(package).align(path, text)
    after = latflow.load(tmp_path / "better").align(path, text)
    moved = [
        b.start - a.start for a, b in zip(before.phones, after.phones, strict=True)
    ]
    assert moved[1:] == pytest.approx([0.02] * (len(moved) - 1), abs=1e-4)
    assert after.words[0].start_within == (0.01, 0.02)
    assert before.words[0].start_within is None
    (tmp_path / "a.lab").write_text(text)
    files = (str(path), str(tmp_path / "a.lab"), str(digits.root / "lexicon.txt"))
    out = tmp_path / "a.csv"
    assert main(["align-one", *files, str(tmp_path / "better"), str(out)]) == 0
    rows = [line.split(",") for line in out.read_text().splitlines()]
    starts = [float(row[0]) for row in rows if row[3] == "words"]
    assert starts == [round(word.start, 4) for word in after.words]
