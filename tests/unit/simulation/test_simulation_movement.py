"""Speakers who walk: where they go, and how what they say arrives."""

import json

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment
from scipy import signal

from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import load_samples, read_cuts
from latflow.errors import UserError
from latflow.options import read_options
from latflow.simulation.acoustics import SPEED_OF_SOUND
from latflow.simulation.corpus import CutSpeech, simulate_corpus
from latflow.simulation.drawing import Drawing
from latflow.simulation.options import SimulatedSetOptions, SimulationOptions
from latflow.simulation.records import (
    MovementDraw,
    Record,
    RoomDraw,
    read_records,
    record_line,
)
from latflow.simulation.simulator import Simulator, faded

RATE = 8000
LENGTH = 2 * RATE


class OneUtterance:
    """Noise of two seconds."""

    def __len__(self):
        return 1

    def utt_id(self, i):
        return "u"

    def position(self, utt_id):
        return 0

    def speaker(self, i):
        return "s"

    def num_samples(self, i):
        return LENGTH

    def samples(self, i):
        rng = np.random.default_rng(1)
        return (0.03 * rng.standard_normal(LENGTH)).astype(np.float32)


SPEECH = OneUtterance()


def always(value):
    return {"type": "choice", "of": [value]}


def rooms_of(**movement):
    return {
        "type": "generated", "number": 5, "t60": always(0.2), "movement": movement,
        "length": always(5.0), "width": always(4.0), "height": always(2.5),
    }  # fmt: skip


def drawn(rooms, seed=1, whole_pass=0, **more):
    options = read_options(SimulationOptions, {"rooms": rooms, **more})
    drawing = Drawing(options, SPEECH, rate=RATE, seed=seed)
    return drawing.draw("u", LENGTH, whole_pass=whole_pass)


# Past two microphones, from the first to the second.
ROOM = RoomDraw(
    number=0, size=(6.0, 5.0, 3.0), microphone=(3.0, 2.0, 1.5), source=(1.6, 3.0, 1.5),
    others=((1.0, 1.0, 1.0),), t60=0.2, redraws=0,
)  # fmt: skip
MOVEMENT = MovementDraw(end=(4.6, 3.0, 1.5), speed=1.5, step=0.04)
PAIR = ((-0.3, 0.0, 0.0), (0.3, 0.0, 0.0))


def walked(array):
    """Clicks on the way, what arrives of them, and the ways to the microphones."""
    clicks = np.arange(RATE // 10, LENGTH - RATE // 10, RATE // 5)
    wave = np.zeros(LENGTH, np.float32)
    wave[clicks] = 0.5
    record = Record(
        utterance="u", whole_pass=0, rate=RATE, num_samples=LENGTH,
        room=ROOM, movement=MOVEMENT, array=array,
    )  # fmt: skip
    heard = np.atleast_2d(Simulator(SPEECH, rate=RATE).apply(record, wave))
    way = np.subtract(MOVEMENT.end, ROOM.source)
    share = clicks / RATE * MOVEMENT.speed / np.linalg.norm(way)
    assert share[-1] < 1
    places = np.array(ROOM.source) + share[:, None] * way
    microphones = np.add(ROOM.microphone, array or [(0.0, 0.0, 0.0)])
    distances = np.linalg.norm(places - microphones[:, None], axis=-1)
    return clicks, heard, distances


def arrivals(heard, clicks):
    """When the direct path of each click arrives, samples, and how loud it is."""
    before, after, fineness = 16, 48, 32
    times, levels = [], []
    for click in clicks:
        piece = heard[:, click - before : click + after]
        fine = signal.resample(piece, piece.shape[1] * fineness, axis=1)
        # Reflections are later: the floor is 1.5 m away from all.
        direct = fine[:, : (before + 16) * fineness]
        times.append(direct.argmax(1) / fineness - before)
        levels.append(direct.max(1))
    return np.array(times).T, np.array(levels).T


def test_delay_and_level_of_the_direct_path_follow_the_way():
    clicks, heard, distances = walked(PAIR)
    times, levels = arrivals(heard, clicks)
    late = (distances - distances.min(0)) * RATE / SPEED_OF_SOUND
    assert late.max() > 10  # samples, to one side and to the other
    np.testing.assert_allclose(times, late, atol=0.15)
    falling = levels * distances
    np.testing.assert_allclose(falling / falling.mean(), 1.0, atol=0.12)


def test_sound_of_one_who_walks_arrives_when_it_did():
    clicks, heard, _ = walked(None)
    times, _ = arrivals(heard, clicks)
    np.testing.assert_allclose(times, 0.0, atol=0.1)


def test_who_does_not_move_is_heard_as_one_who_stays():
    record = drawn(rooms_of(speed=always(0.0)))
    assert record.movement.end == record.room.source
    wave = SPEECH.samples(0)
    still = record.model_copy(update={"movement": None})
    found, wanted = (
        Simulator(SPEECH, rate=RATE).apply(r, wave) for r in (record, still)
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("last", [2999.5, 9000.0])
@pytest.mark.parametrize("shape", [(300,), (2, 300)])
def test_a_response_fades_into_itself(shape, last):
    rng = np.random.default_rng(3)
    wave, response = rng.standard_normal(5000), rng.standard_normal(shape)
    times = np.linspace(0, last, 7)
    times = times[: np.searchsorted(times, len(wave)) + 1]
    found = faded(wave, times, [response] * len(times))
    wanted = signal.fftconvolve(
        np.broadcast_to(wave, (*shape[:-1], 5000)), response, axes=-1
    )[..., :5000]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_responses_take_over_in_turn():
    """A sample has the shares of the two responses that it lies between."""
    gains = np.array([1.0, 3.0, -2.0])
    found = faded(np.ones(100), np.array([0.0, 40.0, 60.0]), gains[:, None])
    wanted = np.interp(np.arange(100), [0, 40, 60], gains)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_ways_stay_in_the_room_and_away_from_the_microphone():
    lengths = []
    for whole_pass in range(150):
        record = drawn(rooms_of(speed=always(1.5)), whole_pass=whole_pass)
        room, end = record.room, np.array(record.movement.end)
        assert (end[:2] > 0.498).all()
        assert (end[:2] < np.array(room.size)[:2] - 0.498).all()
        assert end[2] == room.source[2]
        way = np.linspace(room.source, end, 100)
        gap = np.linalg.norm(way - room.microphone, axis=1)
        assert gap.min() >= min(0.3, gap[0]) - 0.01
        lengths.append(np.linalg.norm(end - room.source))
    assert max(lengths) <= 3.002  # as far as one gets in two seconds
    assert np.median(lengths) > 2.0


def test_who_walks_is_drawn_and_changes_no_other_draw():
    noises = {"hiss": {"type": "generated"}}
    records = [
        [drawn(rooms_of(**given), whole_pass=p, noises=noises) for p in range(40)]
        for given in ({"probability": 0.5}, {"probability": 0.0})
    ]
    moved = sum(record.movement is not None for record in records[0])
    assert 10 <= moved <= 30
    for one, other in zip(*records, strict=True):
        assert one.model_copy(update={"movement": None}) == other


def test_measured_rooms_have_no_movement():
    rooms = {"type": "measured", "files": "rir", "movement": {}}
    with pytest.raises(UserError, match=r"rooms\.movement"):
        read_options(SimulationOptions, {"rooms": rooms})
    with pytest.raises(UserError, match="9 is not within 0 and 3"):
        read_options(SimulationOptions, {"rooms": rooms_of(speed=always(9.0))})


def test_a_way_out_of_the_room_is_one_line():
    record = drawn(rooms_of())
    out = record.movement.model_copy(update={"end": (9.0, 1.0, 1.0), "speed": 3.0})
    record = record.model_copy(update={"movement": out})
    with pytest.raises(UserError, match="source at .* is outside of its room"):
        Simulator(SPEECH, rate=RATE).apply(record, SPEECH.samples(0))


def test_a_set_of_who_walks_is_made_again_of_its_records(tmp_path):
    with ManifestWriter(tmp_path / "cuts.jsonl.gz") as writer:
        soundfile.write(tmp_path / "u.wav", SPEECH.samples(0), RATE, subtype="FLOAT")
        recording = Recording.from_file(tmp_path / "u.wav", recording_id="u")
        said = SupervisionSegment("u", "u", 0.0, 2.0, speaker="s", text="one")
        writer.write(MonoCut("u", 0.0, 2.0, 0, [said], recording=recording))
    given = {"of": "test", "rooms": rooms_of(speed=always(1.0))}
    options = read_options(SimulatedSetOptions, given)
    cuts, folder = tmp_path / "cuts.jsonl.gz", tmp_path / "set"
    simulate_corpus(cuts, folder, options=options, seed=1, threads=1)
    assert json.loads((folder / "simulation.json").read_text())["with_movement"] == 1
    (record,) = read_records(folder / "records.jsonl")
    (cut,) = read_cuts(folder / "cuts.jsonl.gz")
    with CutSpeech(cuts, tmp_path) as speech:
        wave = speech.samples(0)
        again, other = (Simulator(speech, rate=RATE).apply(record, wave) for _ in "12")
    np.testing.assert_array_equal(again, other)
    np.testing.assert_allclose(again, load_samples(cut), atol=1 / 32768)
    still = record.model_copy(update={"movement": None})
    assert record_line(still) != record_line(record)
    assert not np.allclose(
        Simulator(SPEECH, rate=RATE).apply(still, wave), again, atol=1e-3
    )
