"""Several microphones: diffuse noise with its coherence, sound with its delays."""

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment
from scipy import signal

from latflow.corpus.manifests import ManifestWriter, load_samples, read_cuts
from latflow.errors import UserError
from latflow.options import read_options
from latflow.simulation.acoustics import SPEED_OF_SOUND
from latflow.simulation.corpus import CutSpeech, simulate_corpus
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import read_records
from latflow.simulation.simulator import Simulator

RATE = 8000
SECONDS = 40
PLACES = [[0.0, 0.0, 0.0], [0.05, 0.0, 0.0], [0.0, 0.12, 0.03], [-0.2, -0.1, 0.0]]
ARRAY = {"microphones": PLACES}
# Of speech so weak that what is heard is the noise.
LOUD = {"type": "choice", "of": [-60.0]}
SMALL = {
    "type": "generated", "number": 1, "distance": {"type": "choice", "of": [1.0]},
    "t60": {"type": "choice", "of": [0.15]},
    **{side: {"type": "uniform", "low": 3.0, "high": 4.0}
       for side in ("length", "width", "height")},
}  # fmt: skip


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Manifest of two utterances, a long and a short one; a noise beside it."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(1)
    path = folder / "cuts.jsonl.gz"
    with ManifestWriter(path) as writer:
        for name, seconds in (("long", SECONDS), ("short", 1)):
            file = folder / f"{name}.wav"
            soundfile.write(file, 0.05 * rng.standard_normal(seconds * RATE), RATE)
            recording = Recording.from_file(file, recording_id=name)
            said = SupervisionSegment(
                name, name, 0.0, seconds, speaker=name, text="one two"
            )
            cut = MonoCut(name, 0.0, seconds, 0, [said], recording=recording)
            writer.write(cut)
    (folder / "noise").mkdir()
    noise = np.cumsum(rng.standard_normal(SECONDS * RATE))
    noise = signal.lfilter([1, -1], [1, -0.95], noise)
    soundfile.write(folder / "noise/n.wav", 0.1 * noise / np.abs(noise).max(), RATE)
    return path


def simulated(cuts, folder, **values):
    """Channels [C, L] and record of each utterance of a simulated set."""
    options = read_options(SimulatedSetOptions, {"of": "test", **values})
    simulate_corpus(cuts, folder, options=options, seed=1, threads=1)
    records = {r.utterance: r for r in read_records(folder / "records.jsonl")}
    number = len(options.array.microphones) if options.array else 1
    return {
        cut.id: (load_samples(cut, range(number)), records[cut.id])
        for cut in read_cuts(folder / "cuts.jsonl.gz")
    }


@pytest.mark.parametrize("kind", ["generated", "recorded"])
def test_noise_from_everywhere_has_the_coherence_of_a_diffuse_field(
    cuts, tmp_path, kind
):
    noise = {
        "generated": {"type": "generated", "spectrum": "white", "snr": LOUD},
        "recorded": {
            "type": "recorded", "files": str(cuts.parent / "noise"),
            "place": "everywhere", "snr": LOUD,
        },
    }[kind]  # fmt: skip
    made = simulated(cuts, tmp_path / "set", noises={"n": noise}, array=ARRAY)
    heard, _ = made["long"]
    assert heard.shape == (4, SECONDS * RATE)
    errors = []
    for i in range(4):
        for j in range(i):
            frequency, coherence = coherence_of(heard[i], heard[j])
            distance = np.linalg.norm(np.subtract(PLACES[i], PLACES[j]))
            x = 2 * np.pi * frequency * distance / SPEED_OF_SOUND
            wanted = np.sin(x[1:]) / x[1:]
            errors += [coherence[1:] - wanted]
    # Of about 500 independent windows: deviations of 0.03.
    assert np.sqrt(np.mean(np.abs(errors) ** 2)) < 0.06
    assert np.abs(np.mean(errors)) < 0.01
    power = np.square(heard).mean(1)
    assert power.max() / power.min() < 1.05


def coherence_of(first, second):
    """Complex coherence of two channels, in windows of 64 ms."""
    how = {"fs": RATE, "nperseg": 512}
    frequency, cross = signal.csd(second, first, **how)
    powers = [signal.welch(channel, **how)[1] for channel in (first, second)]
    return frequency, cross / np.sqrt(powers[0] * powers[1])


def test_sound_from_a_place_is_late_by_its_way(cuts, tmp_path):
    made = simulated(cuts, tmp_path / "set", rooms=SMALL, array=ARRAY)
    heard, record = made["short"]
    room = record.room
    places = np.add(room.microphone, record.array)
    np.testing.assert_allclose(
        np.linalg.norm(np.subtract(*np.array(record.array)[[1, 3]])),
        np.linalg.norm(np.subtract(PLACES[1], PLACES[3])),
        atol=2e-3,
    )
    ways = np.linalg.norm(places - room.source, axis=1)
    late = (ways - ways.min()) * RATE / SPEED_OF_SOUND
    with CutSpeech(cuts, tmp_path) as speech:
        dry = speech.samples(speech.position("short"))
    for channel, wanted in zip(heard, late, strict=True):
        found = np.argmax(signal.correlate(channel, dry)) - (len(dry) - 1)
        assert abs(found - wanted) <= 0.75


def test_levels_hold_over_all_microphones(cuts, tmp_path):
    """Speech has the power of the dry one; noise what its ratio says."""
    point = {
        "type": "recorded", "files": str(cuts.parent / "noise"),
        "snr": {"type": "choice", "of": [5.0]},
    }  # fmt: skip
    given = {"rooms": SMALL, "array": ARRAY}
    noisy = simulated(cuts, tmp_path / "noisy", noises={"n": point}, **given)
    clean = simulated(cuts, tmp_path / "clean", **given)
    with CutSpeech(cuts, tmp_path) as speech:
        for utterance, (heard, _) in noisy.items():
            alone, _ = clean[utterance]
            dry = speech.samples(speech.position(utterance))
            powers = [np.square(x).mean() for x in (dry, alone, heard - alone)]
            levels = 10 * np.log10(powers)
            assert levels[1] - levels[0] == pytest.approx(0.0, abs=0.1)
            assert levels[1] - levels[2] == pytest.approx(5.0, abs=0.1)


def test_a_record_with_an_array_is_done_again(cuts, tmp_path):
    noises = {"hiss": {"type": "generated"}}
    made = simulated(
        cuts, tmp_path / "set", rooms=SMALL, noises=noises, speakers={}, array=ARRAY,
        device={"clipped": {"type": "choice", "of": [0.1]}}, probability=0.6,
    )  # fmt: skip
    with CutSpeech(cuts, tmp_path) as speech:
        for utterance, (heard, record) in made.items():
            samples = speech.samples(speech.position(utterance))
            again = Simulator(speech, rate=RATE).apply(record, samples)
            np.testing.assert_allclose(again, heard, atol=2 / 32768)  # 16 bits


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"microphones": [[0, 0, 0]]}, "microphones"),
        ({"microphones": [[0, 0, 0.1], [0, 0, 0.1]]}, "two microphones are at one"),
        ({"microphones": [[0, 0], [0, 1]]}, "microphones"),
        ({"microphones": PLACES, "turn": {"type": "choice", "of": [500]}}, "turn"),
    ],
)
def test_arrays_that_cannot_be_are_refused(values, what):
    given = {"of": "test", "noises": {"n": {"type": "generated"}}, "array": values}
    with pytest.raises(UserError, match=what):
        read_options(SimulatedSetOptions, given)


def test_measured_rooms_have_one_microphone():
    rooms = {"type": "measured", "files": "rir"}
    with pytest.raises(UserError, match="an array needs rooms of type generated"):
        read_options(
            SimulatedSetOptions, {"of": "test", "rooms": rooms, "array": ARRAY}
        )


def test_an_array_that_no_room_holds_is_one_line(cuts, tmp_path):
    large = {"microphones": [[-3.0, 0.0, 0.0], [3.0, 0.0, 0.0]]}
    with pytest.raises(UserError, match="no room had .* a smaller array"):
        simulated(cuts, tmp_path / "set", rooms=SMALL, array=large)
