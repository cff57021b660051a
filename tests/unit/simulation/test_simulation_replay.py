"""Sets made of records: the same bits again, elsewhere; what is refused."""

import json
import shutil

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import load_samples, read_cuts, volume_of
from latflow.errors import UserError
from latflow.options import read_options
from latflow.simulation.corpus import simulate_corpus
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import AudioFiles, read_records
from latflow.simulation.simulator import Simulator

RATE = 8000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Manifest of six utterances of two speakers; noises, a response of a room."""
    folder = tmp_path_factory.mktemp("replayed")
    rng = np.random.default_rng(1)
    with ManifestWriter(folder / "cuts.jsonl.gz") as writer:
        for i in range(6):
            wave = 0.05 * rng.standard_normal(RATE // 2 + 100 * i)
            soundfile.write(folder / f"u{i}.wav", wave, RATE)
            recording = Recording.from_file(folder / f"u{i}.wav", recording_id=f"u{i}")
            whole = recording.duration
            said = SupervisionSegment(
                f"u{i}", f"u{i}", 0, whole, speaker=f"s{i % 2}", text="x"
            )
            writer.write(MonoCut(f"u{i}", 0, whole, 0, [said], recording=recording))
    for name in ("noise/street/a", "noise/street/b", "noise/rain", "rooms/hall"):
        path = folder / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.1 * rng.standard_normal(RATE), RATE)
    return folder


def recorded(files, **values):
    return {"type": "recorded", "files": str(files), **values}


def exactly(value):
    return {"type": "choice", "of": [value]}


def options_of(**values):
    return read_options(SimulatedSetOptions, {"of": "test", **values})


def simulated(folder, out, **values):
    simulate_corpus(
        folder / "cuts.jsonl.gz", out, options=options_of(**values), seed=1, threads=2
    )
    return out


def heard(folder):
    return {
        cut.id: load_samples(cut, list(range(cut.recording.num_channels)))
        for cut in read_cuts(folder / "cuts.jsonl.gz")
    }


def records_of(folder):
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


PAIR = {"microphones": [[-0.1, 0, 0], [0.1, 0, 0]]}
ROOMS = {"type": "generated", "number": 2, "t60": exactly(0.15)}
KINDS = {
    "utterances": {
        "probability": 0.8,
        "rooms": ROOMS,
        "speakers": {"probability": 0.5},
        "device": {"telephone": 0.5},
    },
    "array": {"rooms": ROOMS, "array": PAIR},
    "conversations": {"rooms": ROOMS, "conversation": {"duration": 1.0}},
    "measured": {"rooms": {"type": "measured", "files": "rooms"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_is_made_again_of_its_records_elsewhere(tmp_path, folder, kind):
    """From other options, another seed, and noises that lie in another folder."""
    values = dict(KINDS[kind])
    is_measured = kind == "measured"
    if is_measured:
        values["rooms"] = {**values["rooms"], "files": str(folder / "rooms")}
    noises = {"street": recorded(folder / "noise/s*/*.wav"),
              "any": recorded(folder / "noise", place="everywhere"),
              "hiss": {"type": "generated"}}  # fmt: skip
    drawn = simulated(folder, tmp_path / "drawn", noises=noises, **values)
    there = tmp_path / "elsewhere"
    shutil.copytree(folder / "noise", there / "sounds")
    shutil.copytree(folder / "rooms", there / "halls")
    again = options_of(
        records=str(drawn / "records.jsonl"),
        noises={
            "street": recorded(there / "sounds"),
            "any": recorded(there / "sounds"),
        },
        rooms={"type": "measured", "files": str(there / "halls")}
        if is_measured
        else None,
        array=PAIR if kind == "array" else None,
    )
    # as rules give them, with all defaults
    assert read_options(SimulatedSetOptions, again.values()) == again
    cuts = folder / "cuts.jsonl.gz"
    simulate_corpus(cuts, tmp_path / "again", options=again, seed=2, threads=1)
    first, second = heard(drawn), heard(tmp_path / "again")
    assert list(first) == list(second)
    for utt_id, samples in first.items():
        np.testing.assert_array_equal(samples, second[utt_id])
    assert records_of(drawn) == records_of(tmp_path / "again")
    texts = [(f / "simulation.json").read_text() for f in (drawn, tmp_path / "again")]
    assert texts[0] == texts[1]
    files = {n["file"] for r in records_of(drawn) for n in r["noises"] if n["file"]}
    assert files <= {"rain.wav", "street/a.wav", "street/b.wav"}


def test_speeds_and_volumes_of_training_are_replayed(tmp_path, folder):
    """Speeds in the audio, volumes in the cuts, where they cut nothing off."""
    noises = {"street": recorded(folder / "noise/street")}
    drawn = simulated(folder, tmp_path / "drawn", noises=noises)
    records = records_of(drawn)
    assert not {"speed", "volume"} & {key for record in records for key in record}
    records[1] |= {"speed": 1.25, "volume": 30.0, "num_samples": 3280}
    records[2] |= {"speed": 1.0, "noises": []}
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    again = simulated(folder, tmp_path / "out", records=str(path), noises=noises)
    assert records_of(again) == records
    before, after = heard(drawn), heard(again)
    for utt_id in ("u0", "u3", "u4", "u5"):
        np.testing.assert_array_equal(before[utt_id], after[utt_id])
    cuts = {cut.id: cut for cut in read_cuts(again / "cuts.jsonl.gz")}
    assert cuts["u1"].num_samples == 3280
    assert cuts["u1"].supervisions[0].duration == cuts["u1"].duration == 3280 / RATE
    assert {u: volume_of(cut) for u, cut in cuts.items() if cut.custom} == {"u1": 30.0}
    own, _ = soundfile.read(folder / "u1.wav", dtype="float32")
    options = options_of(records=str(path), noises=noises)
    record = AudioFiles(options).absolute(list(read_records(path))[1])
    louder = Simulator(None, rate=RATE).apply(record, own)
    np.testing.assert_allclose(30 * after["u1"][0], louder, atol=30 / 2**15)
    assert np.abs(louder).max() > 1
    np.testing.assert_array_equal(
        after["u2"][0], soundfile.read(folder / "u2.wav", dtype="float32")[0]
    )


def changed(number, **values):
    """Return a change of one record."""

    def change(records):
        records[number] |= values
        return records

    return change


def swapped(records):
    return [records[1], records[0], *records[2:]]


def with_noise(**values):
    def change(records):
        records[2]["noises"][0] |= values
        return records

    return change


SPEAKER = {"utterance": "u9", "offset": 0, "sir": 0.0, "overlap": 1.0}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda records: records[:-1], "u5: has no record of an utterance of test"),
        (lambda records: [*records, records[-1]], "u5: is not the next utterance"),
        (swapped, "u1: is not the next utterance of the set"),
        (changed(3, utterance="u9"), "u9: is not in the set test"),
        (changed(3, num_samples=7), "u3: has 4300 samples .* and 7 in its record"),
        (changed(3, speed=0.8), "u3: has 5375 samples .* at speed 0.8, and 4300 in"),
        (changed(3, speed=0.90001), "u3: .*8000 Hz at speed 0.90001 cannot be"),
        (changed(3, speed=3), "line 4 is not a record .* less than or equal to 2"),
        (changed(3, rate=16000), "u3: is of 16000 Hz, and the set test of 8000 Hz"),
        (changed(3, array=PAIR["microphones"]), "u3: is of 2 microphones, and array"),
        (changed(3, speakers=[SPEAKER]), "u9: is not in the set test"),
        (changed(3, response="x.wav"), "u3: has x.wav of rooms, which the options"),
        (with_noise(file="c.wav"), "u2: has c.wav, which is not among .*noises.street"),
        (with_noise(name="rain"), "u2: has .*.wav of noises.rain, which the options"),
        (with_noise(snr=300), "line 3 is not a record .* less than or equal to 100"),
        (with_noise(snr=None), "line 3 is not a record of a simulation"),
        (changed(4, level=1), "line 5 is not a record .*unknown configuration key"),
    ],
)  # fmt: skip
def test_records_that_do_not_fit_are_one_line(tmp_path, folder, change, what):
    noises = {"street": recorded(folder / "noise/street")}
    drawn = simulated(folder, tmp_path / "drawn", noises=noises)
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in change(records_of(drawn))))
    with pytest.raises(UserError, match=rf"changed\.jsonl: .*{what}") as error:
        simulated(folder, tmp_path / "out", records=str(path), noises=noises)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (changed(0, utterance="../x"), "is not a conversation with a unique name"),
        (changed(0, num_samples=10), "u.: ends behind the end of conversation-000000"),
        (
            lambda records: [records[0], records[0]],
            "not a conversation with a unique name",
        ),
        (changed(1, volume=2), "conversation-000001: is a conversation with a speed"),
        (changed(1, turns=[]), "conversation-000001: is not in the set"),
    ],
)
def test_conversations_that_do_not_fit_are_one_line(tmp_path, folder, change, what):
    drawn = simulated(folder, tmp_path / "drawn", **KINDS["conversations"])
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in change(records_of(drawn))))
    with pytest.raises(UserError, match=rf"changed\.jsonl: .*{what}"):
        simulated(folder, tmp_path / "out", records=str(path))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"source": [99.0, 1.0, 1.0]}, "source at 99.00 x .* is outside of its room"),
        ({"source": None}, "source and microphone are at one place"),
    ],
)
def test_rooms_that_cannot_be_name_their_record(tmp_path, folder, values, what):
    rooms = {"type": "generated", "number": 1, "t60": exactly(0.3)}
    records = records_of(simulated(folder, tmp_path / "drawn", rooms=rooms))
    room = records[3]["room"]
    room |= {"source": values["source"] or room["microphone"]}
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(UserError, match=rf"changed\.jsonl: u3: .*{what}"):
        simulated(folder, tmp_path / "out", records=str(path))


def test_a_file_that_is_missing_is_one_line(tmp_path, folder):
    with pytest.raises(UserError, match=r"none\.jsonl: no such file"):
        simulated(folder, tmp_path / "out", records=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"probability": 0.5}, "leave out probability"),
        ({"speakers": {}, "device": {}}, "leave out speakers, device"),
        ({"rooms": {"type": "generated"}}, "leave out rooms"),
        ({"noises": {"a": {"type": "generated"}}}, r"leave out noises\.a"),
        ({"noises": {"a": recorded("x", number=2)}}, r"leave out noises\.a\.number"),
        ({"array": {**PAIR, "turn": exactly(0)}}, r"leave out array\.turn"),
        ({"conversation": {}}, "leave out conversation"),
    ],
)
def test_draws_beside_records_are_refused(values, what):
    with pytest.raises(UserError, match=f"records say what is drawn; {what}"):
        options_of(records="records.jsonl", **values)
