"""What Lhotse has as an operation of its own gives the same samples."""

import numpy as np
import pytest
import soundfile
from lhotse import Recording
from lhotse.augmentation import ReverbWithImpulseResponse
from lhotse.cut.set import mix

from latflow.simulation.records import NoiseDraw, Record
from latflow.simulation.simulator import Simulator

RATE, LENGTH = 16000, 32000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An utterance, a longer noise, and a response with silence at its beginning."""
    folder = tmp_path_factory.mktemp("lhotse")
    rng = np.random.default_rng(1)
    decay = np.exp(-np.arange(4000) / 600) * rng.standard_normal(4000)
    response = np.concatenate((np.zeros(100), [3.0], 0.3 * decay))
    for name, wave in (
        ("speech", rng.standard_normal(LENGTH) * np.hanning(LENGTH)),
        ("noise", rng.standard_normal(LENGTH + 8000)),
        ("room", response),
    ):
        level = 0.2 * wave / np.abs(wave).max()
        soundfile.write(folder / f"{name}.wav", level, RATE, subtype="FLOAT")
    return folder


def speech_of(folder):
    return soundfile.read(folder / "speech.wav", dtype="float32")[0]


def simulated(folder, **values):
    record = Record(
        utterance="u", whole_pass=0, rate=RATE, num_samples=LENGTH, **values
    )
    nobody = None  # no record here has other speakers
    return Simulator(nobody, rate=RATE).apply(record, speech_of(folder))


def test_measured_rooms_are_those_of_reverb_rir(folder):
    response = str(folder / "room.wav")
    room = ReverbWithImpulseResponse(rir=Recording.from_file(response).to_dict())
    wanted = room(speech_of(folder)[None], RATE)[0]
    found = simulated(folder, response=response)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("begin", [0.0, 0.25])
def test_noise_is_that_of_mix(folder, begin):
    speech, noise = (
        Recording.from_file(folder / f"{name}.wav").to_cut()
        for name in ("speech", "noise")
    )
    first = int(begin * 8001) / RATE
    part = noise.truncate(offset=first, duration=speech.duration)
    wanted = mix(speech, part, snr=7.0).load_audio()[0]
    draw = NoiseDraw(name="n", file=str(folder / "noise.wav"), begin=begin, snr=7.0)
    found = simulated(folder, noises=(draw,))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
