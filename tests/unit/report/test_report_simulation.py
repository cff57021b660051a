"""The section of simulation: counts, what was done, players side by side."""

import base64
import io

import numpy as np
import pytest
import soundfile
from fixtures.made_up_results import made_up_recipe
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.features.live import prepare_live_features
from latflow.report.build import write_page
from latflow.report.inputs import Results
from latflow.report.page import Beside, Heading, Note, Table
from latflow.report.simulation import describe_record, simulation_section
from latflow.simulation.corpus import simulate_corpus
from latflow.simulation.records import read_records
from latflow.workflow.recipe import Recipe

RATE = 8000
SOURCE = {"type": "kaldi", "path": "made/up"}
HISS = {"hiss": {"type": "generated", "snr": {"type": "choice", "of": [10.0]}}}
ROOM = {
    "type": "generated", "number": 1, "t60": {"type": "choice", "of": [0.2]},
    "movement": {"speed": {"type": "choice", "of": [0.5]}},
}  # fmt: skip
PAIR = {"microphones": [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0]]}
TWO = {"type": "choice", "of": [2]}
SETS = {
    "noisy": {"of": "test", "noises": HISS},
    "far": {"of": "test", "rooms": ROOM, "speakers": {}, "array": PAIR},
    "cheap": {"of": "test", "device": {"telephone": 1.0}},
    "talks": {"of": "test", "conversation": {"speakers": TWO, "duration": 3}},
}


def results_of(folder, names=("noisy", "far", "cheap"), **report):
    corpus = {"train": SOURCE, "dev": SOURCE, "test": {"test": SOURCE}}
    corpus["simulated"] = {name: SETS[name] for name in names}
    return Results(folder, Recipe.resolve(made_up_recipe(corpus=corpus, report=report)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results with a test set of three utterances, the last too long, and two sets."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "corpus/test").mkdir(parents=True)
    with ManifestWriter(folder / "corpus/test/cuts.jsonl.gz") as writer:
        for i, seconds in enumerate((1, 1, 2)):
            wave = 0.1 * np.random.default_rng(i).standard_normal(seconds * RATE)
            soundfile.write(folder / f"{i}.wav", wave, RATE)
            recording = Recording.from_file(folder / f"{i}.wav", recording_id=f"u{i}")
            said = SupervisionSegment(
                f"u{i}", f"u{i}", 0, seconds, text="ONE TWO", speaker=f"s{i}"
            )
            writer.write(MonoCut(f"u{i}", 0, seconds, 0, [said], recording=recording))
    simulated = results_of(folder, SETS).options.corpus.simulated
    for name in ("noisy", "far", "talks"):
        simulate_corpus(
            folder / "corpus/test/cuts.jsonl.gz", folder / "corpus" / name,
            options=simulated[name], seed=1, threads=1,
        )  # fmt: skip
    return folder


def test_an_utterance_is_heard_as_each_set_has_it(folder, tmp_path):
    section = simulation_section(results_of(folder, max_example_duration=1.5))
    table, note, heading, beside = section.blocks
    assert isinstance(table, Table)
    assert [row["set"] for row in table.rows] == ["noisy", "far"]
    assert table.rows[1]["with movement"] == 3
    assert isinstance(note, Note)
    assert "simulated set cheap" in note.text
    assert isinstance(heading, Heading)
    assert heading.text == "u1: ONE TWO"
    assert isinstance(beside, Beside)
    clean, noisy, far = beside.examples
    names = [example.utterance for example in beside.examples]
    assert names == ["test", "noisy", "far"]
    assert clean.summary == "1.0 s: as it is"
    assert noisy.summary == "1.0 s: hiss (hoth noise), SNR 10.0 dB"
    assert far.summary.startswith("1.0 s: first of 2 microphones; room of ")
    assert len({example.audio for example in beside.examples}) == 3
    page = tmp_path / "page.html"
    write_page(page, "x", "y", [section], date="now")
    text = page.read_text()
    assert text.count("<article") == text.count("<audio") == 3
    assert text.count('class="beside"') == 1


def test_as_many_are_shown_as_asked_for(folder, monkeypatch):
    monkeypatch.setattr(
        "latflow.report.simulation.sound_and_picture", lambda *_: ("", "")
    )
    for number in (0, 2, 9):
        given = results_of(folder, max_example_duration=1.5, num_simulated=number)
        blocks = simulation_section(given).blocks
        shown = [block.text for block in blocks if isinstance(block, Heading)]
        assert len(set(shown)) == len(shown) == min(number, 2)


def test_what_was_done_is_told(folder):
    records = list(read_records(folder / "corpus/far/records.jsonl"))
    for record in records:
        parts = describe_record(record).split("; ")
        assert parts[0] == "first of 2 microphones"
        assert "T60 0.20 s, speaker at " in parts[1]
        assert parts[2].endswith(" m at 0.5 m/s")
        assert parts[3].startswith(record.speakers[0].utterance)
    change = {"room": None, "movement": None, "speakers": (), "array": None}
    assert describe_record(records[0].model_copy(update=change)) == "as it is"


def test_a_recording_that_is_gone_is_told(folder, monkeypatch):
    def read(cut, tiers):
        if "noisy" in cut.recording.sources[0].source:
            raise OSError("no such file\nand more")
        return "", ""

    monkeypatch.setattr("latflow.report.simulation.sound_and_picture", read)
    given = results_of(folder, max_example_duration=1.5)
    blocks = simulation_section(given).blocks
    (gone,) = (b.text for b in blocks if isinstance(b, Note) and "cannot" in b.text)
    assert gone == "u1 of noisy cannot be read any more: no such file"
    assert [e.utterance for e in blocks[-1].examples] == ["test", "far"]


@pytest.mark.parametrize("names", [("talks", "noisy"), ("noisy", "talks")])
def test_utterances_of_conversations_are_shown(folder, names):
    given = results_of(folder, names, max_example_duration=1.5, num_simulated=2)
    table, *blocks = simulation_section(given).blocks
    (row,) = (row for row in table.rows if row["set"] == "talks")
    assert row["simulated"] == row["utterances"] == 3
    shown = [block for block in blocks if isinstance(block, Beside)]
    for beside in shown:
        told_of = {example.utterance: example.summary for example in beside.examples}
        assert [*told_of] == ["test", *names]
        assert told_of["talks"].startswith("1.0 s: in a conversation of ")
    assert len(shown) == 2


TRAINED = {
    "type": "ce", "network": "x.yaml", "alignments": "tri1", "features": "mel",
}  # fmt: skip
DRAWN = {
    "clean": TRAINED,
    "near": {**TRAINED, "data": {"simulation": {"noises": HISS}}},
    "loud": {**TRAINED, "data": {
        "simulation": {"rooms": {**ROOM, "movement": None}},
        "perturbation": {"speeds": [0.8], "volume": [30.0, 30.0]},
    }},
}  # fmt: skip


def trained(folder, **report):
    """Results of systems that simulate in training, on the utterances of the test."""
    mel = {"type": "fbank", "stored": False, "cmvn": {"type": "none"}}
    nnet = {"features": {"mel": mel}, "systems": DRAWN}
    recipe = made_up_recipe(
        nnet=nnet, report={"max_example_duration": 1.5, **report}, seed=3
    )
    return Results(folder, Recipe.resolve(recipe))


def heard(example):
    samples = base64.b64decode(example.audio.partition(",")[2])
    return soundfile.read(io.BytesIO(samples), dtype="float32")[0]


def test_draws_of_trainings_are_heard(folder, tmp_path):
    (missing,) = simulation_section(trained(tmp_path)).blocks
    assert "No training data of near, loud yet" in missing.text
    results = trained(tmp_path)
    frames = tmp_path / "streams/mel/frames/train"
    prepare_live_features(
        folder / "corpus/test/cuts.jsonl.gz", frames, max_skipped_fraction=0,
        options=results.options.nnet.features["mel"],
    )  # fmt: skip
    heading, beside = simulation_section(results).blocks
    assert heading.text == "u1: ONE TWO"
    clean, near, loud = beside.examples
    assert [e.utterance for e in beside.examples] == ["as it is", "near", "loud"]
    assert clean.summary == "1.0 s: as it is"
    assert near.summary == "1.0 s: hiss (hoth noise), SNR 10.0 dB"
    assert loud.summary.startswith("1.2 s: speed 0.8; room of ")
    assert loud.summary.endswith(" m; volume 30.00")
    own = soundfile.read(folder / "1.wav", dtype="float32")[0]
    np.testing.assert_array_equal(heard(clean), own)
    rest = heard(near) - own
    ratio = np.square(own).mean() / np.square(rest).mean()
    assert 10 * np.log10(ratio) == pytest.approx(10, abs=0.1)
    samples = heard(loud)  # brought to full scale, nothing cut off
    assert np.mean(np.abs(samples) > 0.99) < 3 / len(samples)
    assert len(samples) == RATE / 0.8
    assert simulation_section(trained(tmp_path, num_simulated=0)) is None


def test_draws_that_cannot_be_made_again_are_told(folder, tmp_path, monkeypatch):
    results = trained(tmp_path)
    prepare_live_features(
        folder / "corpus/test/cuts.jsonl.gz", tmp_path / "streams/mel/frames/train",
        max_skipped_fraction=0, options=results.options.nnet.features["mel"],
    )  # fmt: skip

    def gone(*_, **__):
        raise UserError("no audio for the simulation", file="noise")

    monkeypatch.setattr("latflow.report.simulation.DrawnRecords", gone)
    (note,) = simulation_section(results).blocks
    assert note.is_missing
    assert note.text.startswith("Draws of near, loud cannot be shown: noise: no audio")


def test_without_simulated_sets_there_is_no_section(tmp_path):
    assert (
        simulation_section(Results(tmp_path, Recipe.resolve(made_up_recipe()))) is None
    )
