"""Several microphones: diffuse noise with its coherence, sound with its delays."""

import math

import numpy as np
import pytest
import soundfile
import torch
import yaml
from lhotse import MonoCut, Recording, SupervisionSegment
from scipy import signal

from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import load_samples, read_cuts
from latflow.errors import UserError
from latflow.features.extract import extract_features, make_extractor
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.options import FrontEndOptions
from latflow.nnet.description import NetworkDescription
from latflow.nnet.layers.beamforming import beamformed
from latflow.nnet.network import Network
from latflow.options import read_options
from latflow.simulation.acoustics import SPEED_OF_SOUND
from latflow.simulation.convolution import convolved
from latflow.simulation.corpus import CutSpeech, simulate_corpus
from latflow.simulation.drawing import Drawing
from latflow.simulation.noises import diffuse_noise
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import read_records
from latflow.simulation.rooms import calibrated_responses, room_responses
from latflow.simulation.simulator import Simulator
from latflow.training.readers import LiveReader
from latflow.workflow.recipe import Recipe

RATE = 8000
SECONDS = 8
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


def coherence_errors(heard):
    """Coherence of channels [C, L] less that of a diffuse field, [pairs, F]."""
    frequency, _, windows = signal.stft(heard, RATE, nperseg=512, noverlap=256)
    cross = np.einsum("ift,jft->ijf", windows, windows.conj())
    pairs = np.array([(i, j) for i in range(len(heard)) for j in range(i)])
    first, second = pairs.T
    powers = np.einsum("iif->if", cross).real
    coherence = cross[first, second] / np.sqrt(powers[first] * powers[second])
    places = np.array(PLACES)
    distance = np.linalg.norm(places[first] - places[second], axis=1)
    x = 2 * np.pi * frequency[1:-1] * distance[:, None] / SPEED_OF_SOUND
    return coherence[:, 1:-1] - np.sin(x) / x


def test_mixed_noise_has_the_coherence_of_a_diffuse_field():
    rng = np.random.default_rng(2)
    made = diffuse_noise(rng.standard_normal((4, 30 * RATE)), np.array(PLACES), RATE)
    errors = coherence_errors(made)
    # Of about 600 independent windows: deviations of 0.04.
    assert np.sqrt(np.mean(np.abs(errors) ** 2)) < 0.06
    assert np.abs(np.mean(errors, axis=1)).max() < 0.015
    np.testing.assert_allclose(np.square(made).mean(1), 1.0, rtol=0.02)


def test_mixing_needs_no_power_that_is_the_same():
    """Parts of a recording may be of different levels."""
    rng = np.random.default_rng(2)
    parts = rng.standard_normal((4, 8 * RATE)) * [[0.1], [1.0], [2.0], [0.5]]
    power = np.square(diffuse_noise(parts, np.array(PLACES), RATE)).mean(1)
    assert power.max() / power.min() < 1.1


@pytest.mark.parametrize("kind", ["generated", "recorded"])
def test_noise_from_everywhere_is_diffuse(cuts, tmp_path, kind):
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
    errors = coherence_errors(heard)
    # Of about 160 independent windows: deviations of 0.08.
    assert np.sqrt(np.mean(np.abs(errors) ** 2)) < 0.12
    assert np.abs(np.mean(errors)) < 0.02


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
        ({"microphones": [[0, 0, 0], [9, 0, 0]]}, "9 m from the middle .* at most 5 m"),
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


# -- one microphone --------------------------------------------------------------------


def test_one_microphone_hears_what_it_did_without_arrays(cuts, tmp_path):
    """The bits of the same steps for one channel, written out."""
    noises = {
        "hiss": {"type": "generated", "spectrum": "white"},
        "street": {"type": "recorded", "files": str(cuts.parent / "noise")},
    }
    options = {"of": "test", "rooms": SMALL, "noises": noises}
    with CutSpeech(cuts, tmp_path) as speech:
        dry = speech.samples(speech.position("short"))
        drawing = Drawing(
            read_options(SimulatedSetOptions, options), speech, rate=RATE, seed=1
        )
        record = drawing.draw("short", len(dry), whole_pass=0)
        found = Simulator(speech, rate=RATE).apply(record, dry)
    assert record.array is None
    room, (hiss, street) = record.room, record.noises
    size, microphone, source, elsewhere = (
        torch.tensor([place], dtype=torch.float64)
        for place in (room.size, room.microphone, room.source, street.place)
    )
    wanted = torch.tensor([room.t60], dtype=torch.float64)
    made = calibrated_responses(size, source, microphone, wanted, rate=RATE)
    (response,) = room_responses(
        size, elsewhere, microphone, made.reflection, rate=RATE,
        num_samples=math.ceil(room.t60 * RATE),
        advance=(elsewhere - microphone).norm(dim=1),
    ).numpy()  # fmt: skip
    wave = dry.astype(np.float64)
    power = np.square(wave).mean()
    mixed = convolved(wave, made.responses[0].numpy())[: len(wave)]
    mixed *= math.sqrt(power / np.square(mixed).mean())
    recorded, _ = soundfile.read(street.file, dtype="float32")
    before = len(response) - 1
    length = len(wave) + before
    begin = int(street.begin * (len(recorded) - length + 1))
    assert len(recorded) > length
    part = recorded[begin : begin + length].astype(np.float64)
    heard = convolved(part, response)[before : before + len(wave)]
    white = np.random.default_rng([hiss.seed]).standard_normal(len(wave))
    for noise, draw in ((white, hiss), (heard, street)):
        level = power / np.square(noise).mean() / 10 ** (draw.snr / 10)
        mixed += noise * math.sqrt(level)
    mixed /= max(1.0, np.abs(mixed).max())
    np.testing.assert_array_equal(found, mixed.astype(np.float32))


def test_the_beamformer_takes_noise_away(cuts, tmp_path):
    """With ideal masks the MVDR beamformer is better than the best microphone."""
    line = {"microphones": [[0.04 * k - 0.06, 0, 0] for k in range(4)]}
    street = {"type": "recorded", "files": str(cuts.parent / "noise")}
    level = {"type": "choice", "of": [5.0]}
    options = read_options(
        SimulatedSetOptions,
        {
            "of": "test",
            "rooms": {**SMALL, "number": 8},
            "noises": {
                "street": {**street, "snr": level},
                "hiss": {"type": "generated", "snr": level},
            },
            "array": line,
        },
    )

    def spectra(channels):  # [F, C, T]
        window = torch.hann_window(256)
        found = torch.stft(
            torch.from_numpy(channels), 256, 64, window=window, return_complex=True
        )
        return found.transpose(0, 1)

    def ratio(wanted, rest):
        return 10 * math.log10(wanted.abs().square().sum() / rest.abs().square().sum())

    gains = []
    with CutSpeech(cuts, tmp_path) as speech:
        simulator = Simulator(speech, rate=RATE)
        drawing = Drawing(options, speech, rate=RATE, seed=1)
        i = speech.position("long")
        wave = speech.samples(i) * np.repeat([1, 0.01] * 8, RATE // 2)  # has pauses
        wave = wave.astype(np.float32)
        for whole_pass in range(8):
            record = drawing.draw("long", len(wave), whole_pass=whole_pass)
            parts = simulator.split(record, wave, early=math.inf)
            wanted, rest = map(spectra, parts)
            power = [part[:, 0].abs().square() for part in (wanted, rest)]
            mask = (power[0] / (power[0] + power[1]))[None]
            found = beamformed(
                (wanted + rest)[None], mask, 1 - mask, reference=0, loading=1e-4
            )[0]
            alone = max(ratio(wanted[:, c], rest[:, c]) for c in range(4))
            gains.append(ratio(wanted[:, 0], found - wanted[:, 0]) - alone)
    assert min(gains) > 3.0  # dB


# -- a recipe --------------------------------------------------------------------------

LISTENING = {
    "spectra": {"class": "stft", "channels": 2},
    "masks": {"class": "mask_estimator", "size": 2},
    "beam": {"class": "mvdr", "from": ["spectra", "masks"]},
    "mel": {"class": "mel", "sample_rate": RATE, "num_bins": 10},
    "output": {"class": "output"},
}


def test_a_recipe_trains_a_beamformer_on_one_channel(repository, cuts, tmp_path):
    """The example of docs/simulation.md: arrays on the fly, and in a test set."""
    array = {"microphones": PLACES[:3]}
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    far = {"of": "test", "rooms": SMALL, "array": array}
    config["corpus"]["simulated"] = {"test_far": far}
    samples = {"type": "waveform", "channels": [2, 0], "single_channel": "repeat"}
    samples |= {"stored": False, "cmvn": {"type": "none"}, "dither": 0.0}
    data = {
        "normalization": "none",
        "sequences": {"type": "utterances"},
        "simulation": {"rooms": SMALL, "array": array},
    }
    system = {"type": "ce", "network": "beam.yaml", "alignments": "tri1"}
    config["nnet"] = {
        "features": {"samples": samples},
        "systems": {"beam": {**system, "features": "samples", "data": data}},
    }
    recipe = Recipe.from_config(config)

    options = recipe.options.corpus.simulated["test_far"]
    simulate_corpus(cuts, tmp_path / "far", options=options, seed=1, threads=1)
    stream = recipe.streams["samples"].options
    there = {"clean": cuts, "far": tmp_path / "far/cuts.jsonl.gz"}
    frames = {}
    for name, path in there.items():
        folder = tmp_path / f"{name} frames"
        prepare_live_features(path, folder, options=stream, max_skipped_fraction=0)
        frames[name] = LiveFrames(folder)
    extractor = make_extractor(stream.part(FrontEndOptions), RATE)
    short = frames["clean"].position("short")

    # A set with the array, stored features too; another with what its channel repeats.
    extract_features(
        there["far"], tmp_path / "stored", options=stream, threads=1,
        max_skipped_fraction=0,
    )  # fmt: skip
    made = FrameStore.load(tmp_path / "stored")
    stored = made.frames(made.position("short"))
    far = frames["far"].frames(short)
    np.testing.assert_array_equal(far, stored)
    (cut,) = (cut for cut in read_cuts(there["far"]) if cut.id == "short")
    channels = load_samples(cut, [2, 0])
    np.testing.assert_array_equal(far, extractor.extract_utterance(channels, 0))
    clean = frames["clean"].frames(short)
    first, second = np.split(clean, 2, axis=1)
    np.testing.assert_array_equal(first, second)

    # Training: the array hears what is read.
    draws = recipe.networks["beam"].options.data.simulation
    reader = LiveReader(frames["clean"]).simulated(draws, seed=1, whole_pass=0)
    batch = np.empty((1, *clean.shape), np.float32)
    reader.fill(np.array([short]), np.array([0]), np.array([len(clean)]), batch)
    with CutSpeech(cuts, tmp_path) as speech:
        dry = speech.samples(speech.position("short"))
        heard = Simulator(speech, rate=RATE).apply(
            reader.simulation.record(short, len(dry)), dry
        )
    np.testing.assert_array_equal(
        batch[0], extractor.extract_utterance(heard[[2, 0]], 0)
    )

    description = NetworkDescription.from_config({"layers": LISTENING})
    network = Network(description, frames["far"].dim, {"pdf": 3}).eval()
    for features in (far, clean, batch[0]):
        given = torch.from_numpy(features.copy())[None]
        found = network(given, torch.tensor([len(features)]))["output"].logits
        assert found.shape == (1, len(features), 3)
        assert found.isfinite().all()
