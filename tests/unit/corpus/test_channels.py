"""Recordings of several channels: named, noted, or refused where silent."""

import json

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, Recording, SupervisionSegment
from pydantic import TypeAdapter

from latflow.corpus.assemble import SEVERAL_CHANNELS
from latflow.corpus.manifests import load_samples, read_cuts
from latflow.corpus.options import Source
from latflow.corpus.prepare import prepare_corpus
from latflow.errors import UserError
from latflow.features.options import FeatureOptions
from latflow.ledger import read_ledger
from latflow.workflow.survey import Survey, survey_source

FEATURES = FeatureOptions()
RNG = np.random.default_rng(0)
LOUD = RNG.standard_normal(8000) * 0.1
OTHER = RNG.standard_normal(8000) * 0.05
HOW = {"seed": 0, "threads": 1, "max_skipped_fraction": 0.0}
NOTE = f"{SEVERAL_CHANNELS} (0)"


def write(folder, first, second):
    folder.mkdir(exist_ok=True)
    soundfile.write(folder / "r.wav", np.stack([first, second], 1), 8000)


def kaldi(folder, **tables):
    given = {"wav.scp": "r r.wav", "text": "r A", "utt2spk": "r s", **tables}
    for name, line in given.items():
        (folder / name).write_text(f"{line}\n")
    return {"type": "kaldi", "path": str(folder)}


def manifests(folder, **fields):
    source = AudioSource("file", [0, 1], str(folder / "r.wav"))
    recording = Recording("r", [source], 8000, 8000, 1.0)
    told = SupervisionSegment("r", "r", 0.0, 1.0, text="A", speaker="s").to_dict()
    del told["channel"]
    (folder / "r.jsonl").write_text(json.dumps(recording.to_dict()))
    (folder / "s.jsonl").write_text(json.dumps({**told, **fields}))
    return {
        "type": "manifests",
        "recordings": str(folder / "r.jsonl"),
        "supervisions": str(folder / "s.jsonl"),
    }


def listed(folder):
    (folder / "r.txt").write_text("A\n")
    return {"type": "folder", "path": str(folder), "on_bad_utterance": "fail"}


def made(source):
    return TypeAdapter(Source).validate_python(source)


def prepare(source, tmp_path):
    """Return the samples of the utterance, and the notes of the ledger."""
    out = tmp_path / "out"
    prepare_corpus(made(source), "train", out, **HOW)
    (cut,) = read_cuts(out / "cuts.jsonl.gz")
    notes = [
        (e.utterance, e.reason, e.action) for e in read_ledger(out / "ledger.jsonl")
    ]
    return load_samples(cut), notes


def told(source):
    survey = Survey("train", "m", None, FEATURES)
    return [str(finding) for finding in survey_source(made(source), survey)]


SOURCES = {"kaldi": kaldi, "manifests": manifests, "folder": listed}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_channel_that_nothing_names_is_noted(tmp_path, kind):
    write(tmp_path / "d", LOUD, OTHER)
    source = SOURCES[kind](tmp_path / "d")
    samples, notes = prepare(source, tmp_path)
    np.testing.assert_allclose(samples, LOUD, atol=1e-4)
    assert notes == [("r", NOTE, "noted")]
    (finding,) = [line for line in told(source) if SEVERAL_CHANNELS in line]
    assert finding.startswith("warning: ")
    assert "(1): r" in finding


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("level", [0.0, 0.005])
def test_a_silent_channel_is_refused(tmp_path, kind, level):
    write(tmp_path / "d", level * OTHER, LOUD)
    source = SOURCES[kind](tmp_path / "d")
    with pytest.raises(UserError, match="r: is on channel 0, which is silent.*name"):
        prepare(source, tmp_path)
    assert "is on channel 0, which is silent" in "".join(told(source))
    samples, notes = prepare({**source, "channel": 1}, tmp_path)
    np.testing.assert_allclose(samples, LOUD, atol=1e-4)
    assert notes == []
    assert not [line for line in told({**source, "channel": 1}) if "several" in line]


def test_a_channel_that_only_begins_in_silence_is_taken(tmp_path):
    late = np.concatenate([np.zeros(1 << 17), LOUD])
    write(tmp_path / "d", late, np.resize(OTHER, late.shape))
    source = kaldi(tmp_path / "d")
    assert "silent" not in "".join(told(source))
    samples, _ = prepare(source, tmp_path)
    np.testing.assert_allclose(samples, late, atol=1e-4)


def test_a_quiet_channel_that_is_named_is_taken(tmp_path):
    write(tmp_path / "d", 0.005 * OTHER, LOUD)
    source = kaldi(tmp_path / "d", segments="r r 0 1 0")
    samples, notes = prepare(source, tmp_path)
    assert np.abs(samples).max() < 0.002
    assert notes == []


def test_recordings_that_are_silent_throughout_are_taken(tmp_path):
    write(tmp_path / "d", 0 * LOUD, 0 * LOUD)
    assert not prepare(kaldi(tmp_path / "d"), tmp_path)[0].any()


NAMED = {
    "segments": lambda folder: kaldi(folder, segments="r r 0 1 1"),
    "side": lambda folder: kaldi(folder, reco2file_and_channel="r r B"),
    "number": lambda folder: kaldi(folder, reco2file_and_channel="r r 2"),
    "supervision": lambda folder: manifests(folder, channel=1),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_channel_that_is_named_is_taken(tmp_path, name):
    write(tmp_path / "d", 0 * OTHER, LOUD)
    source = NAMED[name](tmp_path / "d")
    samples, notes = prepare(source, tmp_path)
    np.testing.assert_allclose(samples, LOUD, atol=1e-4)
    assert notes == []
    assert not [line for line in told(source) if "channel" in line]


def test_the_side_of_a_file_of_one_channel_is_that_channel(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    soundfile.write(folder / "r.wav", LOUD, 8000)
    source = kaldi(folder, reco2file_and_channel="r r B")
    np.testing.assert_allclose(prepare(source, tmp_path)[0], LOUD, atol=1e-4)


def test_a_side_that_is_none_is_refused(tmp_path):
    write(tmp_path / "d", LOUD, OTHER)
    source = kaldi(tmp_path / "d", reco2file_and_channel="r r left")
    with pytest.raises(UserError, match="reco2file_and_channel: r: 'r left' is not"):
        prepare(source, tmp_path)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (lambda f: kaldi(f, segments="r r 0 1 2"), "its recording has channels"),
        (lambda f: kaldi(f, segments="r zz 0 1"), "unknown recording zz"),
        (lambda f: kaldi(f, **{"wav.scp": "r cat r.wav |"}), "allow_commands: true"),
        (lambda f: manifests(f, channel=2), "its recording has channels"),
        (lambda f: manifests(f, recording_id="zz"), "unknown recording zz"),
    ],
)
def test_the_doctor_sees_what_the_corpus_stage_refuses(tmp_path, source, what):
    write(tmp_path / "d", LOUD, OTHER)
    given = source(tmp_path / "d")
    (finding,) = [line for line in told(given) if what in line]
    assert finding.startswith("error: ")
    with pytest.raises(UserError):
        prepare(given, tmp_path)


def test_a_command_runs_once_for_all_segments(tmp_path):
    write(tmp_path / "d", LOUD, LOUD)
    folder = tmp_path / "d"
    source = kaldi(
        folder,
        **{"wav.scp": f"r echo x >> {folder}/runs; cat {folder}/r.wav |"},
        segments="u1 r 0 0.5\nu2 r 0.5 1",
        text="u1 A\nu2 B",
        utt2spk="u1 s\nu2 s",
    )
    assert not [
        line for line in told({**source, "allow_commands": True}) if "error" in line
    ]
    assert not (folder / "runs").exists()
    out = tmp_path / "out"
    prepare_corpus(made({**source, "allow_commands": True}), "train", out, **HOW)
    parts = [load_samples(cut) for cut in read_cuts(out / "cuts.jsonl.gz")]
    np.testing.assert_allclose(np.concatenate(parts), LOUD, atol=1e-4)
    assert (folder / "runs").read_text() == "x\n"
    assert (out / "audio/r.wav").read_bytes() == (folder / "r.wav").read_bytes()


def test_mended_files_are_noted(tmp_path):
    write(tmp_path / "d", LOUD, LOUD)
    folder = tmp_path / "d"
    soundfile.write(folder / "r.wav", LOUD, 8000)
    content = bytearray((folder / "r.wav").read_bytes())
    content[40:44] = bytes(4)
    (folder / "r.wav").write_bytes(content)
    samples, notes = prepare(kaldi(folder), tmp_path)
    np.testing.assert_allclose(samples, LOUD, atol=1e-4)
    ((name, note, action),) = notes
    assert (name, action) == ("r", "noted")
    assert "wrong length" in note
    assert any(
        line.startswith("warning") and note in line for line in told(kaldi(folder))
    )
