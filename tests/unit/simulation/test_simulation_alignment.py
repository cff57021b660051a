"""Labels stay right in rooms: the direct path is on time, boundaries stay about it."""

import numpy as np
import pytest
from scipy.signal import lfilter

from latflow.simulation.drawing import Drawing
from latflow.simulation.options import SimulationOptions
from latflow.simulation.simulator import Simulator

RATE, SHIFT, WINDOW = 8000, 80, 200
PHONES, SEGMENTS = 8, 25


class MadeUpPhones:
    """Utterances of segments of noise, each through the resonances of its phone.

    Attributes:
        phones: of each utterance, the phone of each segment.
        ends: of each utterance, the sample at which each segment ends.
    """

    def __init__(self, number):
        rng = np.random.default_rng(0)
        low, high = rng.uniform((300, 1000), (900, 3500), (PHONES, 2)).T
        level = 10 ** rng.uniform(-0.6, 0, PHONES)
        self.waves, self.phones, self.ends = [], [], []
        for _ in range(number):
            phones = np.cumsum(rng.integers(1, PHONES, SEGMENTS)) % PHONES
            lengths = rng.integers(RATE * 6 // 100, RATE // 5, SEGMENTS)
            parts = []
            for phone, length in zip(phones, lengths, strict=True):
                noise = rng.standard_normal((1, length + 400))
                both = sum(resonance(noise, f[phone]) for f in (low, high))[0, 400:]
                parts.append(level[phone] * both / both.std())
            self.waves.append((0.03 * np.concatenate(parts)).astype(np.float32))
            self.phones.append(phones)
            self.ends.append(np.cumsum(lengths))

    def __len__(self):
        return len(self.waves)

    def utt_id(self, i):
        return f"u{i}"

    def position(self, utt_id):
        return int(utt_id[1:])

    def speaker(self, i):
        return "s"

    def num_samples(self, i):
        return len(self.waves[i])

    def samples(self, i):
        return self.waves[i]


def resonance(wave, frequency, band=120.0):
    radius = np.exp(-np.pi * band / RATE)
    angle = 2 * np.pi * frequency / RATE
    return lfilter([1], [1, -2 * radius * np.cos(angle), radius**2], wave)


SPEECH = MadeUpPhones(24)


def in_rooms(low, high):
    """The utterances, each in a room with a reverberation time between two."""
    t60 = {"type": "uniform", "low": low, "high": high}
    rooms = {"type": "generated", "number": 100, "t60": t60}
    options = SimulationOptions.model_validate({"rooms": rooms})
    drawing = Drawing(options, SPEECH, rate=RATE, seed=2)
    simulator = Simulator(SPEECH, rate=RATE)
    heard = []
    for i, wave in enumerate(SPEECH.waves):
        record = drawing.draw(SPEECH.utt_id(i), len(wave), whole_pass=0)
        heard.append(simulator.apply(record, wave))
    return heard


@pytest.mark.parametrize("t60", [(0.1, 0.4), (0.4, 0.7), (0.7, 1.0)])
def test_the_direct_path_is_on_time(t60):
    """The whitened cross-correlation with the dry speech is greatest without a lag."""
    for dry, wet in zip(SPEECH.waves, in_rooms(*t60), strict=True):
        spectra = np.fft.rfft(np.stack((dry, wet)), 2 * len(dry))
        cross = spectra[1] * spectra[0].conj()
        found = np.fft.irfft(cross / np.abs(cross))
        assert int(found.argmax()) == 0


def log_energies(wave):
    """Log energies of frames in bands, less their means: [T, D]."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::SHIFT]
    power = np.abs(np.fft.rfft(frames * np.hamming(WINDOW), 256)) ** 2
    edges = np.unique(np.round(np.geomspace(3, 128, 21)).astype(int))
    bands = np.log(np.add.reduceat(power[:, :128], edges[:-1], axis=1) + 1e-8)
    return bands - bands.mean(0)


def boundaries(frames, phones, means, variances):
    """First frame of each segment but the first, by forced alignment."""
    error = np.square(frames[:, None] - means[phones]) / variances[phones]
    log_like = -0.5 * (error + np.log(variances[phones])).sum(-1)
    best = np.where(np.arange(len(phones)) == 0, log_like[0], -np.inf)
    entered = np.zeros(log_like.shape, bool)
    for t in range(1, len(frames)):
        before = np.concatenate(([-np.inf], best[:-1]))
        entered[t] = before > best
        best = np.maximum(before, best) + log_like[t]
    segment, first = len(phones) - 1, []
    for t in range(len(frames) - 1, -1, -1):
        if entered[t, segment]:
            first.append(t)
            segment -= 1
    return np.array(first[::-1])


# Mean shift that is allowed, frames: what rings on from the segment before hides the
# beginning of the next, the more the longer it rings.
@pytest.mark.parametrize(("t60", "most"), [((0.1, 0.5), 1.0), ((0.5, 1.0), 2.0)])
def test_forced_alignments_stay(t60, most):
    """Boundaries in rooms are those of the dry speech, by models of the dry speech."""
    dry = [log_energies(wave) for wave in SPEECH.waves]
    labels = [
        phones[np.searchsorted(ends, np.arange(len(f)) * SHIFT + WINDOW // 2, "right")]
        for f, phones, ends in zip(dry, SPEECH.phones, SPEECH.ends, strict=True)
    ]
    frames, label = np.concatenate(dry), np.concatenate(labels)
    means, variances = (
        np.stack([f(frames[label == phone], axis=0) for phone in range(PHONES)])
        for f in (np.mean, np.var)
    )

    def aligned(utterances):
        return np.concatenate(
            [
                boundaries(f, phones, means, variances)
                for f, phones in zip(utterances, SPEECH.phones, strict=True)
            ]
        )

    wanted = np.concatenate([1 + np.flatnonzero(np.diff(lab)) for lab in labels])
    found = aligned(dry)
    assert np.abs(found - wanted).mean() < 0.5
    late = aligned([log_energies(wave) for wave in in_rooms(*t60)]) - found
    assert np.abs(late).mean() < most
