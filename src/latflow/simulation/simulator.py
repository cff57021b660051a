"""What records say is done to the samples of utterances.

Sound arrives when it did without the room, and no utterance gets longer, so that
transcripts and alignments stay right. The order: speech into its room (its power
stays), other speakers, noises, the whole to full scale where it is louder, effects of
the device. An utterance of digital silence stays as it is, and so does one with samples
that are not numbers, which features are refused for.

Public: `Simulator`.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import torch
from lhotse import Recording

from latflow.array_cache import ArrayCache
from latflow.corpus.manifests import refuse_damaged
from latflow.errors import UserError
from latflow.simulation.records import (
    DeviceDraw,
    NoiseDraw,
    Place,
    Record,
    RoomDraw,
    SpeakerDraw,
    Speech,
)
from latflow.simulation.rooms import calibrated_responses, room_responses

log = logging.getLogger(__name__)

_TELEPHONE_RATE = 8000
_MU = 255.0
_MAX_RESPONSE = 5.0  # of measured responses, s
# Hoth's noise: level in a band of 1 Hz (dB) at centres of thirds of an octave (Hz);
# ITU-T P.800, annex B.
_HOTH_HZ = (
    *(100, 125, 160, 200, 250, 315, 400, 500, 630, 800, 1000, 1250, 1600, 2000, 2500),
    *(3150, 4000, 5000, 6300, 8000),
)
_HOTH_DB = (
    *(32.4, 30.9, 29.1, 27.6, 26.0, 24.4, 22.7, 21.1, 19.5, 17.8, 16.2, 14.6, 12.9),
    *(11.3, 9.6, 7.8, 5.4, 2.6, -1.3, -6.6),
)


class Simulator:
    """Do what records say; safe to share between threads.

    Args:
        speech: holds what other speakers say.
        rate: of all samples, Hz.
        cache_mb: responses and noises that are kept for their next use, MB.
    """

    def __init__(self, speech: Speech, *, rate: int, cache_mb: int = 200) -> None:
        self._speech, self._rate = speech, rate
        self._cache = ArrayCache(cache_mb * 10**6)

    def apply(self, record: Record, samples: np.ndarray) -> np.ndarray:
        """Return an utterance as its record says that it sounds.

        Args:
            record: of the utterance.
            samples: float32 [L].

        Returns:
            float32 [L], within -1 and 1 (where anything is done).

        Raises:
            UserError: a file is missing, not audio, or silent; a source is outside of
                the room; an utterance of another speaker is not there.
        """
        if not record.is_simulated or not samples.any():
            return samples
        if not np.isfinite(samples).all():
            return samples
        dry = samples.astype(np.float64)
        speech = self._in_place(dry, record, record.room and record.room.source)
        power = _power(dry)
        speech *= math.sqrt(power / _power(speech))
        mixed = speech.copy()
        for speaker in record.speakers:
            self._add_speaker(mixed, power, record, speaker)
        for noise in record.noises:
            heard = self._noise(noise, record, len(samples))
            mixed += heard * math.sqrt(power / _power(heard) / 10 ** (noise.snr / 10))
        mixed /= max(1.0, float(np.abs(mixed).max()))
        if record.device is not None:
            mixed = _through_device(mixed, record.device, self._rate)
        return mixed.astype(np.float32)

    def _in_place(
        self, wave: np.ndarray, record: Record, place: Place | None
    ) -> np.ndarray:
        """Return a wave as it arrives from a place in the utterance's room."""
        if record.room is not None and place is not None:
            return _convolved(wave, self._response(record.room, place))[: len(wave)]
        if record.response is not None:
            return _convolved(wave, self._measured(record.response))[: len(wave)]
        return wave.copy()

    def _add_speaker(
        self, mixed: np.ndarray, power: float, record: Record, draw: SpeakerDraw
    ) -> None:
        """Add another speaker to an utterance of some power."""
        try:
            i = self._speech.position(draw.utterance)
        except KeyError:
            raise UserError(
                f"another speaker is to say {draw.utterance}, which is not there",
                utterance=record.utterance,
                remedy="replay records with the set that they were drawn for",
            ) from None
        other = self._speech.samples(i).astype(np.float64)
        if not other.any():
            return
        if draw.place is not None:  # other speakers keep a room that was measured
            other = self._in_place(other, record, draw.place)
        other *= math.sqrt(power / _power(other) / 10 ** (draw.sir / 10))
        first, last = max(0, draw.offset), min(len(mixed), draw.offset + len(other))
        if first < last:
            mixed[first:last] += other[first - draw.offset : last - draw.offset]

    def _noise(self, draw: NoiseDraw, record: Record, length: int) -> np.ndarray:
        """Return a noise of some length, as it arrives, at any level."""
        if draw.file is None:
            return _with_spectrum(
                draw.spectrum or "white", draw.seed, length, self._rate
            )
        noise = self._recorded(draw.file)
        begin = int(draw.begin * len(noise))
        if record.room is None or draw.place is None:
            return _cut(noise, begin, length)
        response = self._response(record.room, draw.place)
        before = len(response) - 1  # the noise has been there before
        heard = _convolved(_cut(noise, begin - before, length + before), response)
        return heard[before : before + length]

    def _recorded(self, file: str) -> np.ndarray:
        """Return a recording at the rate, without the silence at its ends."""
        found = self._cache.get(file)
        if found is None:
            samples = _load(file, self._rate)
            (sounding,) = np.nonzero(samples)
            if len(sounding) == 0:
                raise UserError(
                    "is silent: no noise can be made of it",
                    file=file,
                    remedy="take it out of the folder, or narrow the pattern",
                )
            found = samples[sounding[0] : sounding[-1] + 1]
            self._cache.put(file, found)
        return found

    def _measured(self, file: str) -> np.ndarray:
        """Return a measured response from its direct path on."""
        found = self._recorded(file)
        found = found[int(np.abs(found).argmax()) :]
        return found[: int(_MAX_RESPONSE * self._rate)]

    def _response(self, room: RoomDraw, place: Place) -> np.ndarray:
        """Return the response of a room from a place, the direct path first."""
        walls = (room.size, room.microphone, room.source, room.t60)
        found = self._cache.get((walls, place))
        if found is not None:
            return found
        size, microphone, source, there = (
            torch.tensor([point], dtype=torch.float64)
            for point in (room.size, room.microphone, room.source, place)
        )
        reflection = self._cache.get(walls)
        if reflection is None:
            made = calibrated_responses(
                size,
                source,
                microphone,
                torch.tensor([room.t60], dtype=torch.float64),
                rate=self._rate,
            )
            measured = float(made.decay_time[0])
            if abs(measured / room.t60 - 1) > 0.1:
                log.warning(
                    "room %d: reverberation time %.3f s, not %.3f s",
                    *(room.number, measured, room.t60),
                )
            reflection = made.reflection.numpy()
            self._cache.put(walls, reflection)
            self._cache.put((walls, room.source), made.responses[0].numpy())
            if place == room.source:
                return made.responses[0].numpy()
        response = room_responses(
            size,
            there,
            microphone,
            torch.from_numpy(reflection),
            rate=self._rate,
            num_samples=math.ceil(room.t60 * self._rate),
            advance=(there - microphone).norm(dim=1),
        )[0].numpy()
        self._cache.put((walls, place), response)
        return response


def _power(wave: np.ndarray) -> float:
    """Return the mean square of a wave."""
    return float(np.square(wave).mean())


def _load(file: str, rate: int) -> np.ndarray:
    """Return the first channel of a file at a rate, float32 [L]."""
    remedy = "restore the file, or name others in the options of the simulation"
    with refuse_damaged(file, remedy=remedy):
        recording = Recording.from_file(file)
        if recording.sampling_rate != rate:
            recording = recording.resample(rate)
        channels = recording.channel_ids or [0]
        samples = recording.load_audio(channels=channels[0])[0]
    if not np.isfinite(samples).all():
        raise UserError("holds samples that are not numbers", file=file, remedy=remedy)
    return samples


def _cut(noise: np.ndarray, begin: int, length: int) -> np.ndarray:
    """Return a part of a noise that repeats; of one that is silent, its beginning."""
    part = np.take(noise, np.arange(begin, begin + length), mode="wrap")
    if not part.any():
        part = np.take(noise, np.arange(length), mode="wrap")
    return part.astype(np.float64)


def _convolved(wave: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Return the convolution of two waves, float64."""
    length = len(wave) + len(response) - 1
    # A power of two, or three quarters of one: fast transforms.
    power = 1 << (length - 1).bit_length()
    points = power // 4 * 3 if power // 4 * 3 >= length else power
    parts = (
        torch.from_numpy(np.ascontiguousarray(x)).float() for x in (wave, response)
    )
    first, second = (torch.fft.rfft(part, n=points) for part in parts)
    return torch.fft.irfft(first * second, n=points)[:length].double().numpy()


def _with_spectrum(spectrum: str, seed: int, length: int, rate: int) -> np.ndarray:
    """Return stationary noise with a spectrum, at any level."""
    noise = np.random.default_rng([seed]).standard_normal(length)
    if spectrum == "white":
        return noise
    frequency = np.maximum(np.fft.rfftfreq(length, 1 / rate), 20.0)
    if spectrum == "pink":
        factor = frequency**-0.5
    else:
        level = np.interp(np.log(frequency), np.log(_HOTH_HZ), _HOTH_DB)
        factor = 10 ** (level / 20)
    return np.fft.irfft(np.fft.rfft(noise) * factor, n=length)


def _through_device(wave: np.ndarray, draw: DeviceDraw, rate: int) -> np.ndarray:
    """Return what a device makes of a wave within -1 and 1."""
    if draw.gain is not None:
        wave = np.clip(wave * 10 ** (draw.gain / 20), -1.0, 1.0)
    if draw.low_cut is not None or draw.high_cut is not None:
        low, high = draw.low_cut or 0.0, draw.high_cut or rate / 2
        spectrum = np.fft.rfft(wave)
        spectrum *= _band(np.fft.rfftfreq(len(wave), 1 / rate), low, high)
        wave = np.fft.irfft(spectrum, n=len(wave))
    if draw.clipped:
        level = float(np.quantile(np.abs(wave), 1 - draw.clipped))
        if level > 0.0:  # of what is silent but for less than that share: as it is
            wave = np.clip(wave, -level, level)
    if draw.telephone:
        wave = _over_telephone(wave, rate)
    return np.clip(wave, -1.0, 1.0)


def _band(frequency: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return factors of a band: half a cosine wide, a tenth of each edge, outwards."""
    factor = np.ones_like(frequency)
    if low > 0:
        factor *= np.clip((frequency / low - 0.9) / 0.1, 0, 1)
    if high > 0:
        factor *= np.clip((1.1 - frequency / high) / 0.1, 0, 1)
    return 0.5 - 0.5 * np.cos(np.pi * factor)


def _over_telephone(wave: np.ndarray, rate: int) -> np.ndarray:
    """Return what arrives over a line of 8 kHz, mu-law of 8 bits (ITU-T G.711).

    Lower rates are left as they are; the others lose what is above 4 kHz.
    """
    line_rate = min(rate, _TELEPHONE_RATE)
    shared = math.gcd(rate, line_rate)
    pieces = -(-len(wave) // (rate // shared))
    whole, on_line = pieces * (rate // shared), pieces * (line_rate // shared)
    spectrum = np.fft.rfft(wave, n=whole)[: on_line // 2 + 1]
    sent = np.clip(np.fft.irfft(spectrum, n=on_line) * (on_line / whole), -1.0, 1.0)
    code = np.round(np.sign(sent) * np.log1p(_MU * np.abs(sent)) / np.log1p(_MU) * 127)
    heard = np.sign(code) * np.expm1(np.abs(code) / 127 * np.log1p(_MU)) / _MU
    arrived = np.fft.rfft(heard)
    return np.fft.irfft(arrived, n=whole)[: len(wave)] * (whole / on_line)
