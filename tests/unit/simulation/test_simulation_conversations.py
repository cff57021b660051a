"""Conversations: shares of overlap, segments where their supervisions say."""

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
from latflow.options import read_options
from latflow.simulation.conversations import draw_conversations, speech_and_overlap
from latflow.simulation.corpus import CutSpeech, simulate_corpus
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import TurnDraw, read_records
from latflow.simulation.simulator import Simulator

RATE = 8000


def exactly(*values):
    return {"type": "choice", "of": list(values)}


def options_of(conversation, **values):
    given = {"of": "test", "conversation": conversation, **values}
    return read_options(SimulatedSetOptions, given)


class Lengths:
    """Utterances of 2 to 12 s by some speakers, without audio."""

    def __init__(self, number=400, speakers=8):
        rng = np.random.default_rng(2)
        self._lengths = rng.integers(2 * RATE, 12 * RATE, number).tolist()
        self._speakers = speakers

    def __len__(self):
        return len(self._lengths)

    def utt_id(self, i):
        return f"u{i:04d}"

    def position(self, utt_id):
        return int(utt_id[1:])

    def speaker(self, i):
        return f"s{i % self._speakers}"

    def num_samples(self, i):
        return self._lengths[i]

    def samples(self, i):
        raise NotImplementedError


@pytest.mark.parametrize(("share", "speakers"), [(0.0, 2), (0.1, 3), (0.4, 8)])
def test_two_speak_for_the_wanted_share(share, speakers):
    speech = Lengths()
    options = options_of({"overlap": exactly(share), "speakers": exactly(speakers)})
    records = list(draw_conversations(options, speech, rate=RATE, seed=1))
    said = [turn.utterance for record in records for turn in record.turns]
    assert sorted(said) == [speech.utt_id(i) for i in range(len(speech))]
    times = np.array([speech_and_overlap(record.turns) for record in records])
    spoken, overlap = times.sum(0)
    assert overlap / spoken == pytest.approx(share, abs=0.015)
    for record in records:
        heard = np.zeros(record.num_samples, np.int8)
        by_speaker = {}
        for turn in record.turns:
            last = turn.offset + turn.num_samples
            heard[turn.offset : last] += 1
            assert turn.offset >= by_speaker.get(turn.speaker, 0)
            by_speaker[turn.speaker] = last
        assert heard.max() <= 2
        assert (heard > 0).sum() == speech_and_overlap(record.turns)[0]
        assert (heard > 1).sum() == speech_and_overlap(record.turns)[1]
        assert len(by_speaker) <= speakers
        offsets = [turn.offset for turn in record.turns]
        assert offsets == sorted(offsets)
    lengths = np.array([record.num_samples for record in records]) / RATE
    assert np.median(lengths) == pytest.approx(66, abs=8)  # 60, to an utterance's end


def test_pauses_are_those_that_are_drawn():
    options = options_of(
        {"overlap": exactly(0), "pause": {"type": "uniform", "low": 2.9, "high": 3.0}}
    )
    pauses = []
    for record in draw_conversations(options, Lengths(60), rate=RATE, seed=1):
        for one, other in zip(record.turns, record.turns[1:], strict=False):
            pauses.append(other.offset - one.offset - one.num_samples)
    assert 2.9 * RATE - 1 <= min(pauses) <= max(pauses) <= 3.0 * RATE + 1


def test_who_speaks_when_follows_from_the_seed_alone():
    plain = options_of({})
    noise = {"hiss": {"type": "generated"}}
    noisy = options_of({}, noises=noise, device={"telephone": 1.0})
    drawn = [
        [
            record.turns
            for record in draw_conversations(o, Lengths(60), rate=RATE, seed=s)
        ]
        for o, s in ((plain, 1), (noisy, 1), (plain, 2))
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_one_speaker_has_nobody_to_speak_with():
    records = draw_conversations(options_of({}), Lengths(30, 1), rate=RATE, seed=1)
    turns = [turn for record in records for turn in record.turns]
    assert len(turns) == 30
    assert {turn.speaker for turn in turns} == {"s0"}


def test_time_with_speech_and_with_overlap():
    def turn(offset, length):
        return TurnDraw(
            utterance="u", speaker="s", offset=offset, num_samples=length, level=0.0
        )

    #  ----------      ----
    #      ---       ----
    turns = [turn(0, 10), turn(4, 3), turn(14, 4), turn(16, 4)]
    assert speech_and_overlap(turns) == (16, 5)


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Manifest of twelve utterances of three speakers."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(1)
    path = folder / "cuts.jsonl.gz"
    with ManifestWriter(path) as writer:
        for i in range(12):
            name, length = f"utt {i:02d}", RATE + 777 * i
            wave = 0.1 * rng.standard_normal(length)
            soundfile.write(folder / f"{i}.wav", wave, RATE)
            recording = Recording.from_file(folder / f"{i}.wav", recording_id=f"r{i}")
            whole = recording.duration
            said = SupervisionSegment(
                name, f"r{i}", 0.0, whole, speaker=f"s{i % 3}", text=f"word {i}"
            )
            writer.write(MonoCut(name, 0, whole, 0, [said], recording=recording))
    return path


def test_utterances_are_where_their_supervisions_say(tmp_path, cuts):
    """Without overlap, room and noise a segment is the utterance itself."""
    options = options_of({"overlap": exactly(0), "duration": 4.0, "level": exactly(-6)})
    simulate_corpus(cuts, tmp_path / "set", options=options, seed=1, threads=2)
    given = list(read_cuts(cuts))
    made = list(read_cuts(tmp_path / "set/cuts.jsonl.gz"))
    folder = tmp_path / "set"
    supervisions = list(read_supervisions(folder / "supervisions.jsonl.gz"))
    for one, other, said in zip(given, made, supervisions, strict=True):
        assert (one.id, one.num_samples) == (other.id, other.num_samples)
        assert (said.id, said.text) == (one.id, one.supervisions[0].text)
        assert said.start == pytest.approx(other.start)
        assert said.recording_id == other.recording_id
        factor = 10 ** (-6 / 20)
        wanted = factor * load_samples(one)
        np.testing.assert_allclose(load_samples(other), wanted, atol=2**-15)
    recordings = list(read_recordings(folder / "recordings.jsonl.gz"))
    assert {cut.recording_id for cut in made} == {one.id for one in recordings}
    assert 2 < len(recordings) < 8
    counts = json.loads((folder / "simulation.json").read_text())
    assert counts["utterances"] == 12
    assert counts["conversations"] == len(recordings)
    assert counts["overlap"] == 0


def test_conversations_in_rooms_and_noise_are_the_same_again(tmp_path, cuts):
    room = {"type": "generated", "number": 2, "t60": exactly(0.15)}
    noise = {"hiss": {"type": "generated", "snr": exactly(10.0)}}
    options = options_of(
        {"overlap": exactly(0.3), "duration": 4.0}, rooms=room, noises=noise
    )
    simulate_corpus(cuts, tmp_path / "a", options=options, seed=1, threads=1)
    simulate_corpus(cuts, tmp_path / "b", options=options, seed=1, threads=3)
    records = list(read_records(tmp_path / "a/records.jsonl"))
    assert records == list(read_records(tmp_path / "b/records.jsonl"))
    with CutSpeech(cuts, tmp_path) as speech:
        simulator = Simulator(speech, rate=RATE)
        for record in records:
            name = f"audio/{record.utterance}.flac"
            one, other = (
                soundfile.read(tmp_path / side / name, dtype="float32")[0]
                for side in ("a", "b")
            )
            np.testing.assert_array_equal(one, other)
            replayed = simulator.conversation(record)
            np.testing.assert_allclose(one, replayed, atol=2**-15)
            assert record.room is not None
            places = {turn.speaker: turn.place for turn in record.turns}
            assert places[record.turns[0].speaker] == record.room.source
            assert len(set(places.values())) == len(places)
            # the level of the noise, over the time in which someone speaks
            silent = record.model_copy(update={"noises": ()})
            clean = simulator.conversation(silent)
            is_speech = np.zeros(len(clean), bool)
            for turn in record.turns:
                is_speech[turn.offset : turn.offset + turn.num_samples] = True
            ratio = (
                np.square(clean[is_speech]).mean() / np.square(replayed - clean).mean()
            )
            assert 10 * np.log10(ratio) == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize(("number", "least"), [(1, 4), (3, 2), (4, 1)])
def test_nobody_speaks_where_a_noise_is(tmp_path, number, least):
    """Speakers share what places noises leave; all are half a metre apart."""
    soundfile.write(tmp_path / "n.wav", np.ones(100), RATE)
    options = options_of(
        {"speakers": exactly(6)},
        rooms={"type": "generated", "number": 20},
        noises={"hum": {"type": "recorded", "files": str(tmp_path), "number": number}},
    )
    for record in draw_conversations(options, Lengths(), rate=RATE, seed=1):
        noises = {noise.place for noise in record.noises}
        speakers = {turn.place for turn in record.turns}
        assert len(noises) == number
        assert len(speakers) <= 5 - number
        sources = np.array([*noises, *speakers])
        apart = np.linalg.norm(sources[:, None] - sources, axis=-1)
        assert apart[np.triu_indices(len(sources), 1)].min() >= 0.499
        if len({turn.speaker for turn in record.turns}) == 6:
            assert len(speakers) >= least


def test_conversations_before_an_array(tmp_path, cuts):
    pair = {"microphones": [[-0.2, 0, 0], [0.2, 0, 0]]}
    room = {"type": "generated", "number": 1, "t60": exactly(0.15)}
    options = options_of({"duration": 20.0}, rooms=room, array=pair)
    simulate_corpus(cuts, tmp_path / "set", options=options, seed=1, threads=1)
    (record, *_) = read_records(tmp_path / "set/records.jsonl")
    for cut in read_cuts(tmp_path / "set/cuts.jsonl.gz"):
        left, right = load_samples(cut, [0, 1])
        assert len(left) == cut.num_samples
        assert np.square(left).mean() == pytest.approx(np.square(right).mean(), rel=0.5)
        assert not np.array_equal(left, right)
    assert record.array is not None


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="conversation has its own speakers"):
        options_of({}, speakers={})
    room = {"type": "generated", "movement": {}}
    with pytest.raises(UserError, match="speakers of a conversation stay"):
        options_of({}, rooms=room)
    with pytest.raises(UserError, match=r"overlap.*0\.7 is not within 0 and 0\.5"):
        options_of({"overlap": exactly(0.7)})
    with pytest.raises(UserError, match="name rooms, noises, speakers or device"):
        options_of(None)
