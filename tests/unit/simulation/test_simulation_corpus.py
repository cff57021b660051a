"""A simulated set: the same utterances, what was done to them, the same bits again."""

import json

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import (
    load_samples,
    read_cuts,
    read_recordings,
    read_supervisions,
)
from latflow.errors import UserError
from latflow.ledger import read_ledger
from latflow.options import read_options
from latflow.simulation.corpus import CutSpeech, simulate_corpus
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import AudioFiles, read_records
from latflow.simulation.simulator import Simulator

RATE = 8000
T60 = {"type": "uniform", "low": 0.1, "high": 0.2}


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Manifest of eight utterances of two speakers, parts of two recordings."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(1)
    path = folder / "cuts.jsonl.gz"
    with ManifestWriter(path) as writer:
        for i in range(8):
            name = f"a/utt {i}"
            wave = 0.05 * rng.standard_normal(RATE + 77 * i)
            soundfile.write(folder / f"{i}.wav", wave, RATE)
            recording = Recording.from_file(folder / f"{i}.wav", recording_id=f"r{i}")
            said = SupervisionSegment(
                name, f"r{i}", 0.0, 0.8, speaker=f"s{i % 2}", text="one two"
            )
            cut = MonoCut(name, 0.1, 0.8, 0, supervisions=[said], recording=recording)
            writer.write(cut)
    noise = folder / "noise"
    noise.mkdir()
    soundfile.write(noise / "n.wav", 0.1 * rng.standard_normal(3000), RATE)
    return path


def options_of(cuts, **values):
    noises = {"street": {"type": "recorded", "files": str(cuts.parent / "noise")}}
    rooms = {"type": "generated", "number": 2, "t60": T60}
    given = {"of": "test", "noises": noises, "rooms": rooms, **values}
    return read_options(SimulatedSetOptions, given)


def audio(folder):
    return {c.id: load_samples(c) for c in read_cuts(folder / "cuts.jsonl.gz")}


def test_simulated_set_has_the_utterances_and_their_records(tmp_path, cuts):
    options = options_of(cuts, speakers={"probability": 0.5}, probability=0.8)
    simulate_corpus(cuts, tmp_path / "a", options=options, seed=1, threads=1)
    simulate_corpus(cuts, tmp_path / "b", options=options, seed=1, threads=3)
    given, made = (list(read_cuts(p)) for p in (cuts, tmp_path / "a/cuts.jsonl.gz"))
    for one, other in zip(given, made, strict=True):
        assert (one.id, one.duration) == (other.id, other.duration)
        assert other.start == 0
        assert other.supervisions[0].speaker == one.supervisions[0].speaker
        assert other.supervisions[0].text == one.supervisions[0].text
    ids = [cut.id for cut in given]
    folder = tmp_path / "a"
    recordings = read_recordings(folder / "recordings.jsonl.gz")
    supervisions = read_supervisions(folder / "supervisions.jsonl.gz")
    assert [item.id for item in recordings] == ids
    assert [item.id for item in supervisions] == ids
    first, second = audio(folder), audio(tmp_path / "b")
    records = list(read_records(folder / "records.jsonl"))
    assert [r.utterance for r in records] == ids
    with CutSpeech(cuts, tmp_path) as speech:
        simulator = Simulator(speech, rate=speech.rate)
        files = AudioFiles(options)
        for i, record in enumerate(map(files.absolute, records)):
            np.testing.assert_array_equal(first[ids[i]], second[ids[i]])
            replayed = simulator.apply(record, speech.samples(i))
            np.testing.assert_allclose(first[ids[i]], replayed, atol=2**-15)
    counts = json.loads((folder / "simulation.json").read_text())
    simulated = sum(r.is_simulated for r in records)
    assert 0 < simulated == counts["simulated"] < counts["utterances"] == 8
    assert counts["with_noises"] == simulated
    # utterances of 0.8 s, a noise of 0.375 s
    assert counts["noises_repeated"] == simulated
    assert counts["files_resampled"] == 0
    assert counts["rooms"] <= 2
    entries = list(read_ledger(folder / "ledger.jsonl"))
    assert {e.action for e in entries} == {"noted"}
    reasons = [e.reason for e in entries]
    assert reasons.count("noise too short: repeated") == simulated


def test_sets_at_different_ratios_have_the_same_noise(tmp_path, cuts):
    records = []
    for snr in (0.0, 20.0):
        options = options_of(cuts)
        noise = options.noises["street"].replace(snr={"type": "choice", "of": [snr]})
        options = options.replace(noises={"street": noise})
        out = tmp_path / f"{snr}"
        simulate_corpus(cuts, out, options=options, seed=1, threads=1)
        records.append(list(read_records(out / "records.jsonl")))
    for loud, faint in zip(*records, strict=True):
        assert loud.room == faint.room
        assert loud.noises[0].replace(snr=20.0) == faint.noises[0]


def test_noise_of_another_rate_is_counted(tmp_path, cuts):
    wave = 0.1 * np.random.default_rng(2).standard_normal(2 * 16000)
    soundfile.write(tmp_path / "long.wav", wave, 16000)
    noise = {"hum": {"type": "recorded", "files": str(tmp_path / "*.wav")}}
    options = options_of(cuts, noises=noise, rooms=None)
    simulate_corpus(cuts, tmp_path / "a", options=options, seed=1, threads=1)
    counts = json.loads((tmp_path / "a/simulation.json").read_text())
    assert counts["files_resampled"] == 1
    assert counts["noises_repeated"] == counts["noises_moved"] == 0
    (entry,) = read_ledger(tmp_path / "a/ledger.jsonl")
    assert entry.reason == "noise or response of another rate: resampled"


def test_audio_that_is_missing_is_one_line(tmp_path, cuts):
    (cut, *_) = read_cuts(cuts)
    lost = Recording.from_dict(cut.recording.to_dict())
    lost.sources[0].source = str(tmp_path / "lost.wav")
    with ManifestWriter(tmp_path / "cuts.jsonl.gz") as writer:
        writer.write(MonoCut(cut.id, 0, 0.8, 0, recording=lost))
    with pytest.raises(UserError, match="audio cannot be read"):
        simulate_corpus(
            tmp_path / "cuts.jsonl.gz", tmp_path / "out",
            options=options_of(cuts), seed=1, threads=1,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_samples_that_are_no_numbers_are_one_line(tmp_path):
    name = "u" * 300  # longer than names of files may be
    wave = np.full(RATE, 0.1, np.float32)
    for value, file in ((0.2, "good"), (np.nan, "bad")):
        wave[5] = value
        soundfile.write(tmp_path / f"{file}.wav", wave, RATE, subtype="FLOAT")
        recording = Recording.from_file(tmp_path / f"{file}.wav")
        said = SupervisionSegment(name, file, 0, 1, speaker="s", text="one")
        cut = MonoCut(name, 0, 1, 0, supervisions=[said], recording=recording)
        with ManifestWriter(tmp_path / f"{file}.jsonl.gz") as writer:
            writer.write(cut)
    hiss = {"of": "test", "noises": {"hiss": {"type": "generated"}}}
    options = read_options(SimulatedSetOptions, hiss)
    out = tmp_path / "out"
    simulate_corpus(tmp_path / "good.jsonl.gz", out, options=options, seed=1, threads=1)
    assert list(audio(out)) == [name]
    with pytest.raises(UserError, match="samples that are not numbers"):
        simulate_corpus(
            tmp_path / "bad.jsonl.gz", out, options=options, seed=1, threads=1
        )
