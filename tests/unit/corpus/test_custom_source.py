"""Utterances that a function of the user's own gives."""

import json

import numpy as np
import pytest
import soundfile

from latflow.corpus.manifests import read_cuts
from latflow.corpus.options import CorpusOptions
from latflow.corpus.prepare import prepare_corpus
from latflow.errors import UserError
from latflow.options import read_options

CODE = """
def calls(folder, number=2):
    for n in range(number):
        yield {"audio": f"{folder}/a{n}.wav", "text": f"one {n}", "speaker": "ann"}


def parts(folder):
    audio = f"{folder}/a0.wav"
    yield {"audio": audio, "text": "one", "start": 0.0, "end": 0.4, "id": "first"}
    yield {"audio": audio, "text": "two", "start": 0.5, "end": 0.9}
    yield {"audio": audio, "text": "late", "start": 0.9, "end": 0.5}
    yield {"audio": audio, "text": "again", "id": "first"}
    yield {"audio": f"{folder}/gone.wav", "text": "gone", "id": "gone"}
    yield {"sound": audio}


def fails(folder):
    yield {"audio": f"{folder}/a0.wav", "text": "one"}
    raise KeyError("x")


def nothing(folder):
    return []


five = 5
"""


@pytest.fixture
def source(tmp_path):
    """Function: options of a source, by the function's name."""
    for number in range(2):
        noise = np.random.default_rng(number).normal(0, 0.1, 8000)
        soundfile.write(tmp_path / f"a{number}.wav", noise, 8000)
    (tmp_path / "corpora.py").write_text(CODE)

    def make(function, **more):
        path = f"{tmp_path}/corpora.py:{function}"
        given = {"type": "custom", "path": path, "arguments": {"folder": str(tmp_path)}}
        corpus = {"train": {**given, **more}, "dev": {"type": "none"}}
        return read_options(CorpusOptions, corpus, "corpus").train

    return make


def prepared(source, out, **options):
    options = {"max_skipped_fraction": 1.0, **options}
    prepare_corpus(source, "train", out, seed=1, threads=1, **options)
    lines = (out / "ledger.jsonl").read_text().splitlines()
    return list(read_cuts(out / "cuts.jsonl.gz")), [json.loads(x) for x in lines]


def test_whole_files(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cuts, ledger = prepared(source("calls"), tmp_path / "out")
    assert [cut.id for cut in cuts] == ["a0", "a1"]
    (supervision,) = cuts[1].supervisions
    assert (supervision.text, supervision.speaker) == ("one 1", "ann")
    assert ledger == []


def test_parts_of_a_file_and_their_faults(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = source("parts", speaker="single")
    cuts, ledger = prepared(made, tmp_path / "out")
    assert [(cut.id, cut.start, cut.duration) for cut in cuts] == [
        ("a0-00000500", 0.5, 0.4),
        ("first", 0.0, 0.4),
    ]
    reasons = {entry["utterance"]: entry["reason"] for entry in ledger}
    assert "before it begins" in reasons["utterance-3"]
    assert "another utterance has this id" in reasons["first"]
    assert "does not exist" in reasons["gone"]
    assert "no mapping of audio, text" in reasons["utterance-6"]
    with pytest.raises(UserError, match="utterance-3"):
        prepared(source("parts", on_bad_utterance="fail"), tmp_path / "out")


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("fails", "fails: KeyError: 'x'"),
        ("nothing", "gives no utterance"),
        ("five", "fails: TypeError"),
        ("none", "cannot be loaded"),
    ],
)
def test_functions_that_do_not_do_are_told_in_a_line(source, tmp_path, function, what):
    with pytest.raises(UserError, match=what) as caught:
        prepared(source(function), tmp_path / "out")
    assert f"corpora.py:{function}" in str(caught.value)


def test_file_of_the_function_makes_the_set_new(source, tmp_path):
    made = source("calls", files=("index.txt",))
    assert made.inputs == ["index.txt", str(tmp_path / "corpora.py")]
