"""What records say is done to the samples of utterances.

Sound arrives when it did without the room, and no utterance gets longer, so that
transcripts and alignments stay right. The order: the speed of a training's utterance,
speech into its room (its power stays), other speakers, noises, the whole to full scale
where it is louder, effects of the device, the volume of a training's utterance. An
utterance of digital silence stays unchanged but for these two, and so does one with
samples that are not numbers, which features are refused for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from lhotse import Recording

from latflow.array_cache import ArrayCache
from latflow.corpus.audio import can_resample
from latflow.corpus.manifests import refuse_damaged
from latflow.errors import UserError
from latflow.features.perturb import change_speed
from latflow.simulation.convolution import convolved
from latflow.simulation.devices import through_device
from latflow.simulation.noises import cut_noise, diffuse_noise, noise_with_spectrum
from latflow.simulation.records import (
    MovementDraw,
    NoiseDraw,
    Place,
    Record,
    RoomDraw,
    SpeakerDraw,
    Speech,
)
from latflow.simulation.responses import RoomResponses

_MAX_RESPONSE = 5.0  # of measured responses, s


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
        self._responses = RoomResponses(rate, self._cache)

    def apply(
        self,
        record: Record,
        samples: np.ndarray,
        *,
        events: Counter[str] | None = None,
    ) -> np.ndarray:
        """Return an utterance as its record says that it sounds.

        The bits at another speed depend on torch's number of threads: trainings, and
        stored sets, have one (`worker_pool`).

        Args:
            record: of the utterance.
            samples: float32 [L], at the utterance's own speed if the record has one.
            events: gets the numbers of noises that are too short and repeat
                (`noises_repeated`), and of those that were silent where they were to
                begin, and begin elsewhere (`noises_moved`).

        Returns:
            float32 [L], or [C, L] where the record has an array of microphones: as many
            samples as the record says; within -1 and 1 where more than the speed is
            changed, before the volume.

        Raises:
            UserError: a file is missing, not audio, or silent; a source is outside of
                the room; an utterance of another speaker is not there.
        """
        if record.speed is not None:
            samples = change_speed(samples, self._rate, record.speed)
        if _is_changed(record, samples):
            mixed, _ = self._mixture(record, samples, math.inf, events)
            received = self._recorded_as(mixed, record)
        else:
            received = _at_all(samples, record)
        if record.volume is None:
            return received
        return received * np.float32(record.volume)

    def conversation(
        self, record: Record, *, events: Counter[str] | None = None
    ) -> np.ndarray:
        """Return a conversation as its record says that it sounds.

        Utterances keep their power, but for the level that was drawn. Signal-to-noise
        ratios are over the time in which someone speaks.

        Args:
            record: of the conversation.
            events: see `apply`.

        Returns:
            float32 [L], or [C, L] with an array; within -1 and 1.

        Raises:
            UserError: see `apply`.
        """
        mixed = np.zeros(_at_all(np.zeros(record.num_samples), record).shape)
        is_speech = np.zeros(record.num_samples, np.bool_)
        for turn in record.turns:
            dry = self._speech_of(turn.utterance, record).astype(np.float64)
            speech = self._in_place(dry, record, turn.place, rings_on=True)
            if dry.any():
                speech *= math.sqrt(_power(dry) / _power(speech[..., : len(dry)]))
            speech = speech[..., : record.num_samples - turn.offset]
            last = turn.offset + speech.shape[-1]
            mixed[..., turn.offset : last] += speech * 10 ** (turn.level / 20)
            is_speech[turn.offset : turn.offset + len(dry)] = True
        if mixed.any():
            power = _power(mixed[..., is_speech])
            self._add_noises(mixed, power, record, events)
        mixed /= max(1.0, float(np.abs(mixed).max()))
        return self._recorded_as(mixed, record)

    def _recorded_as(self, mixed: np.ndarray, record: Record) -> np.ndarray:
        """Return what the device makes of all that it receives, float32."""
        if record.device is not None:
            channels = [
                through_device(channel, record.device, self._rate)
                for channel in np.atleast_2d(mixed)
            ]
            mixed = channels[0] if mixed.ndim == 1 else np.stack(channels)
        return mixed.astype(np.float32)

    def split(
        self, record: Record, samples: np.ndarray, *, early: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what of an utterance is wanted, and what is not.

        Their sum is what `apply` gives, but for speed, device and volume; levels are
        those that both have there.

        Args:
            record: of the utterance.
            samples: float32 [L].
            early: how long the response of the speech's room is wanted, s from the
                direct path on; 0 for speech without the room, at its level in it.

        Returns:
            (wanted, rest), float32 [L] each, or [C, L] with an array.

        Raises:
            UserError: see `apply`.
        """
        if not _is_changed(record, samples):
            wanted = _at_all(samples, record)
            return wanted, np.zeros_like(wanted)
        mixed, wanted = self._mixture(record, samples, early)
        return wanted.astype(np.float32), (mixed - wanted).astype(np.float32)

    def _mixture(
        self,
        record: Record,
        samples: np.ndarray,
        early: float,
        events: Counter[str] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what microphones receive, and the wanted speech in it; see `split`.

        Returns:
            float64 [L] or [C, L] each, before the device; the first within -1 and 1.
        """
        dry = samples.astype(np.float64)
        speech = self._received(dry, record)
        power = _power(dry)
        level = math.sqrt(power / _power(speech))
        speech *= level
        mixed = speech.copy()
        for speaker in record.speakers:
            self._add_speaker(mixed, power, record, speaker)
        self._add_noises(mixed, power, record, events)
        if early == 0.0:
            wanted = _at_all(dry, record)
        elif math.isinf(early) or not (record.room or record.response):
            wanted = speech
        else:
            wanted = level * self._received(dry, record, until=early)
        peak = max(1.0, float(np.abs(mixed).max()))
        return mixed / peak, wanted / peak

    def _received(
        self, dry: np.ndarray, record: Record, *, until: float = math.inf
    ) -> np.ndarray:
        """Return the speech of an utterance as it arrives; see `_in_place`."""
        if record.room is not None and record.movement is not None:
            room, movement = record.room, record.movement
            return self._on_the_way(dry, record, room, movement, until=until)
        source = record.room and record.room.source
        return self._in_place(dry, record, source, until=until)

    def _in_place(
        self,
        wave: np.ndarray,
        record: Record,
        place: Place | None,
        *,
        until: float = math.inf,
        rings_on: bool = False,
    ) -> np.ndarray:
        """Return a wave as it arrives from a place in the utterance's room.

        Outside of rooms it arrives at all microphones at once.

        Args:
            wave: float64 [L].
            record: of the utterance.
            place: of its source.
            until: reflections that arrive later are left out, s from the direct path.
            rings_on: also return what still arrives after the end of the wave.
        """
        last = None if rings_on else len(wave)
        if record.room is not None and place is not None:
            response = self._responses.of_place(record.room, place, record.array)
            response = self._beginning(response, until)
            return convolved(wave, response)[..., :last]
        if record.response is not None:
            response = self._beginning(self._measured(record.response), until)
            wave = convolved(wave, response)[:last]
        return _at_all(wave, record).copy()

    def _beginning(self, response: np.ndarray, until: float) -> np.ndarray:
        """Return a response up to a time, s."""
        if math.isinf(until):
            return response
        return response[..., : max(1, round(until * self._rate))]

    def _on_the_way(
        self,
        wave: np.ndarray,
        record: Record,
        room: RoomDraw,
        movement: MovementDraw,
        *,
        until: float,
    ) -> np.ndarray:
        """Return a wave as it arrives from a speaker who walks.

        Speech between two points of the way is shared by their responses. Each begins
        with its own direct path, so that the sound's time of arrival is continuous.
        """
        way = np.subtract(movement.end, room.source)
        length = float(np.linalg.norm(way))
        if length == 0.0 or movement.speed == 0.0:
            return self._in_place(wave, record, room.source, until=until)
        shares = np.linspace(0, 1, 1 + math.ceil(length / movement.step))
        times = shares * length / movement.speed * self._rate
        number = int(np.searchsorted(times, len(wave))) + 1  # those that are needed
        points = (np.add(room.source, share * way) for share in shares[:number])
        responses = (
            self._beginning(self._responses.computed(room, point, record.array), until)
            for point in points
        )
        return faded(wave, times[:number], responses)

    def _add_speaker(
        self, mixed: np.ndarray, power: float, record: Record, draw: SpeakerDraw
    ) -> None:
        """Add another speaker to an utterance of some power."""
        other = self._speech_of(draw.utterance, record).astype(np.float64)
        if not other.any():
            return
        num_samples = len(other)
        if draw.place is not None:  # other speakers keep a room that was measured
            other = self._in_place(other, record, draw.place, rings_on=True)
        own = _power(other[..., :num_samples])
        other *= math.sqrt(power / own / 10 ** (draw.sir / 10))
        end = min(mixed.shape[-1], draw.offset + other.shape[-1])
        first = max(0, draw.offset)
        if first < end:
            part = other[..., first - draw.offset : end - draw.offset]
            mixed[..., first:end] += part

    def _speech_of(self, utt_id: str, record: Record) -> np.ndarray:
        """Return the samples of an utterance that a record names."""
        try:
            i = self._speech.position(utt_id)
        except KeyError:
            raise UserError(
                f"another speaker is to say {utt_id}, which is not there",
                utterance=record.utterance,
                remedy="replay records with the set that they were drawn for",
            ) from None
        return self._speech.samples(i)

    def _add_noises(
        self,
        mixed: np.ndarray,
        power: float,
        record: Record,
        events: Counter[str] | None,
    ) -> None:
        """Add the noises of a record to speech of some power; events as of `apply`."""
        for noise in record.noises:
            wave = self._noise(noise, record, mixed.shape[-1], events)
            mixed += wave * math.sqrt(power / _power(wave) / 10 ** (noise.snr / 10))

    def _noise(
        self,
        draw: NoiseDraw,
        record: Record,
        length: int,
        events: Counter[str] | None,
    ) -> np.ndarray:
        """Return a noise of some length, as it arrives, at any level.

        Where there is an array, noise without a place is diffuse: of as many parts of
        the recording as microphones, which begin at equal distances.
        """
        number = len(record.array or (0,))
        if draw.file is None:
            made = noise_with_spectrum(
                draw.spectrum or "white", draw.seed, (number, length), self._rate
            )
            return _diffuse(made, record)
        room = None if draw.place is None else record.room
        # a noise at a point has been there before
        lead = 0 if room is None else math.ceil(room.t60 * self._rate) - 1
        part = cut_noise(
            self._recorded(draw.file),
            draw.begin,
            length + lead,
            number=number if room is None else 1,
            lead=lead,
            rate=self._rate,
        )
        if events is not None:
            events["noises_repeated"] += part.repeats
            events["noises_moved"] += part.is_moved
        if room is None or draw.place is None:
            return _diffuse(part.samples, record)
        response = self._responses.of_place(room, draw.place, record.array)
        return convolved(part.samples[0], response)[..., lead : lead + length]

    def _recorded(self, file: str) -> np.ndarray:
        """Return a recording at the rate, without the silence at its ends."""
        found = self._cache.get(file)
        if found is None:
            found = sounding(file, self._rate)
            self._cache.put(file, found)
        return found

    def _measured(self, file: str) -> np.ndarray:
        """Return a measured response from its direct path on."""
        found = self._recorded(file)
        found = found[int(np.abs(found).argmax()) :]
        return found[: int(_MAX_RESPONSE * self._rate)]


def _is_changed(record: Record, samples: np.ndarray) -> bool:
    """Return whether anything is done to an utterance; see the module's docstring."""
    return (
        record.is_simulated and bool(samples.any()) and bool(np.isfinite(samples).all())
    )


def _at_all(wave: np.ndarray, record: Record) -> np.ndarray:
    """Return a wave as all microphones hear it at once, [L] or of an array [C, L]."""
    if record.array is None:
        return wave
    return np.broadcast_to(wave, (len(record.array), len(wave)))


def _diffuse(independent: np.ndarray, record: Record) -> np.ndarray:
    """Return diffuse noise of independent ones, [C, L]; without an array the one."""
    if record.array is None:
        return independent[0]
    return diffuse_noise(independent, np.array(record.array), record.rate)


def faded(
    wave: np.ndarray, times: np.ndarray, responses: Iterable[np.ndarray]
) -> np.ndarray:
    """Return a wave that is convolved with one response after another.

    Between two times a sample is shared by the responses of both, linearly; after the
    last it has the last.

    Args:
        wave: float64 [L].
        times: float64 [K], rising from 0, samples.
        responses: K of [R] or [C, R].

    Returns:
        float64 [L] or [C, L].
    """
    edges = np.concatenate(([0.0], times, [np.inf]))
    whole: np.ndarray | None = None
    for k, response in enumerate(responses):
        first = math.floor(edges[k])
        last = min(len(wave), math.ceil(edges[k + 2])) if k + 1 < len(times) else None
        samples = np.arange(len(wave))[first:last]
        share = np.interp(samples, times, np.arange(len(times)) == k)
        part = convolved(wave[first:last] * share, response)[..., : len(wave) - first]
        if whole is None:
            whole = np.zeros((*part.shape[:-1], len(wave)))
        whole[..., first : first + part.shape[-1]] += part
    assert whole is not None
    return whole


def _power(wave: np.ndarray) -> float:
    """Return the mean square of a wave."""
    return float(np.square(wave).mean())


def sounding(file: str, rate: int) -> np.ndarray:
    """Return a recording at a rate without the silence at its ends, float32 [L].

    Raises:
        UserError: it cannot be read, or is silent.
    """
    samples = _load(file, rate)
    (nonzero,) = np.nonzero(samples)
    if len(nonzero) == 0:
        raise UserError(
            "is silent: no noise can be made of it",
            file=file,
            remedy="take it out of the folder, or narrow the pattern",
        )
    return samples[nonzero[0] : nonzero[-1] + 1]


def _load(file: str, rate: int) -> np.ndarray:
    """Return the first channel of a file at a rate, float32 [L]."""
    remedy = "restore the file, or name others in the options of the simulation"
    with refuse_damaged(file, remedy=remedy):
        recording = Recording.from_file(file)
        if recording.sampling_rate != rate:
            if not can_resample(recording.sampling_rate, rate):
                what = f"{recording.sampling_rate} Hz cannot be resampled to {rate} Hz"
                raise UserError(what, file=file, remedy=remedy)
            recording = recording.resample(rate)
        channels = recording.channel_ids or [0]
        samples = recording.load_audio(channels=channels[0])[0]
    if not np.isfinite(samples).all():
        raise UserError("holds samples that are not numbers", file=file, remedy=remedy)
    return samples
