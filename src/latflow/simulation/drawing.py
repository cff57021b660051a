"""Records of what is done to utterances, drawn from distributions.

A record follows from (options, seed, purpose, utterance, pass), so that workers, ranks
and days change nothing of it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import cycle, islice, repeat

import numpy as np

from latflow.errors import UserError
from latflow.simulation.acoustics import shortest_decay_time
from latflow.simulation.distributions import drawn
from latflow.simulation.options import (
    DeviceOptions,
    GeneratedNoise,
    GeneratedRooms,
    MeasuredRooms,
    Place,
    SimulationOptions,
    SpeakerOptions,
)
from latflow.simulation.records import (
    AudioFiles,
    DeviceDraw,
    MovementDraw,
    NoiseDraw,
    Record,
    RoomDraw,
    SpeakerDraw,
    Speech,
)

_DRAWS, _ROOMS = zlib.crc32(b"simulation"), zlib.crc32(b"simulated room")
_ARRAYS = zlib.crc32(b"simulated array")
_MAX_REDRAWS = 1000
_OTHER_PLACES = 4  # places of further sources in a room
_APART = 0.5  # least distance of two sources, m, as PyKaldi2 has it
_MAX_SPEAKER_DRAWS = 50
_MAX_WAYS = 20  # that are drawn until one is long enough; else the longest is taken
_LEAST_GAP = 0.3  # of the array and of who walks by, m


class Drawing:
    """Draws records.

    Args:
        options: to draw from.
        speech: of which other speakers say something.
        rate: Hz.
        seed: of all draws.
        purpose: what rooms are for: those of training and those of test sets differ.
        audio: recordings of the options, where they are listed already.

    Attributes:
        audio: recordings that draws are of.

    Raises:
        UserError: a folder or pattern names no audio, or a device leaves no band.
    """

    def __init__(
        self,
        options: SimulationOptions,
        speech: Speech,
        *,
        rate: int,
        seed: int,
        purpose: str = "training",
        audio: AudioFiles | None = None,
    ) -> None:
        self._options, self._speech, self._array = options, speech, options.array
        self._rate, self._seed = rate, seed
        self._purpose = zlib.crc32(purpose.encode())
        self.audio = audio or AudioFiles(options)
        self._room = lru_cache(maxsize=4096)(self._draw_room)
        self._others = lru_cache(maxsize=8)(self._list_others)
        low = options.device.low_cut if options.device else None
        if low is not None and low.bounds[1] >= rate / 2:
            raise UserError(
                f"simulation: device.low_cut goes to {low.bounds[1]:g} Hz: nothing "
                f"is left of recordings at {rate} Hz",
                remedy=f"keep it below {rate / 2:g} Hz",
            )

    def draw(self, utt_id: str, num_samples: int, *, whole_pass: int) -> Record:
        """Draw what is done to an utterance in a pass.

        Args:
            utt_id: its id.
            num_samples: its length.
            whole_pass: from 0.

        Raises:
            UserError: no room of the options can have its reverberation time, or there
                is no other speaker.
        """

        def generator(purpose: str) -> np.random.Generator:
            return self._generator(utt_id, whole_pass, purpose)

        options = self._options
        record = Record(
            utterance=utt_id,
            whole_pass=whole_pass,
            rate=self._rate,
            num_samples=num_samples,
            array=self._turned(None),
        )
        if not self.is_simulated(utt_id, whole_pass=whole_pass):
            return record
        room, response = self._draw_place(generator("room"))

        taken: set[Place] = set()

        def places(purpose: str) -> Iterator[Place | None]:
            rng = generator(f"place of {purpose}")
            return repeat(None) if room is None else _free_places(room, rng, taken)

        noises = [
            noise
            for name in options.noises
            for noise in self._draw_noises(
                name, generator(f"noise {name}"), places(f"noise {name}")
            )
        ]
        speakers = self._draw_speakers(
            options.speakers,
            generator("speakers"),
            utt_id,
            num_samples,
            places("speakers"),
        )
        return record.model_copy(
            update={
                "array": self._turned(room),
                "room": room,
                "movement": room
                and self._draw_movement(
                    generator("movement"), room, num_samples / self._rate
                ),
                "response": response,
                "noises": tuple(noises),
                "speakers": tuple(speakers),
                "device": _draw_device(options.device, generator("device")),
            }
        )

    def is_simulated(self, utt_id: str, *, whole_pass: int) -> bool:
        """Return whether an utterance is drawn to be simulated in a pass."""
        rng = self._generator(utt_id, whole_pass, "all")
        return bool(rng.random() < self._options.probability)

    def _generator(
        self, utt_id: str, whole_pass: int, purpose: str
    ) -> np.random.Generator:
        """Return a generator for one purpose, whose draws do not depend on others'."""
        key, about = zlib.crc32(utt_id.encode()), zlib.crc32(purpose.encode())
        return np.random.default_rng([self._seed, key, whole_pass, _DRAWS, about])

    def _draw_place(
        self, rng: np.random.Generator
    ) -> tuple[RoomDraw | None, str | None]:
        """Draw a room, or the file of a measured response; or neither."""
        rooms = self._options.rooms
        if rooms is None or rng.random() >= rooms.probability:
            return None, None
        if isinstance(rooms, MeasuredRooms):
            files = self.audio.of("rooms")
            return None, files[int(rng.integers(len(files)))]
        return self._room(int(rng.integers(rooms.number))), None

    def _turned(self, room: RoomDraw | None) -> tuple[Place, ...] | None:
        """Return the array as it stands in a room, or outside of rooms."""
        if self._array is None:
            return None
        if room is None:
            return self._array.microphones
        rng = self._room_generator(room.number, _ARRAYS)
        angle = math.radians(drawn(self._array.turn, rng))
        c, s = math.cos(angle), math.sin(angle)
        around = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        return tuple(_place(around @ p) for p in self._array.microphones)

    def _room_generator(self, number: int, about: int) -> np.random.Generator:
        """Return the generator of what is drawn about a room."""
        return np.random.default_rng([self._seed, self._purpose, number, about])

    def _draw_room(self, number: int) -> RoomDraw:
        options = self._options.rooms
        assert isinstance(options, GeneratedRooms)
        rng = self._room_generator(number, _ROOMS)
        t60 = drawn(options.t60, rng)
        radius = self._array.radius if self._array else 0.0
        sides = (options.length, options.width, options.height)
        shares = (options.microphone_x, options.microphone_y, options.microphone_z)
        for redraws in range(_MAX_REDRAWS):
            size = np.array([drawn(side, rng) for side in sides])
            if (size <= 2 * options.from_wall).any():
                continue
            microphone = size * [drawn(share, rng) for share in shares]
            source = microphone + drawn(options.distance, rng) * _direction(rng)
            others = rng.uniform(
                options.from_wall, size - options.from_wall, (_OTHER_PLACES, 3)
            )
            far = np.linalg.norm(others - microphone, axis=1).min() >= 0.3 + radius
            far &= _least_distance(np.stack((source, *others))) >= _APART
            if radius:  # no microphone in a wall, or in the speaker
                far &= np.linalg.norm(source - microphone) >= 0.1 + radius
                far &= np.minimum(microphone, size - microphone).min() >= 0.05 + radius
            inside = all(
                ((p >= options.from_wall) & (p <= size - options.from_wall)).all()
                for p in (microphone, source, *others)
            )
            shortest = float(shortest_decay_time(size))
            if inside and far and shortest <= t60:
                high = options.high_t60 and round(drawn(options.high_t60, rng), 4)
                return RoomDraw(
                    number=number,
                    size=_place(size),
                    microphone=_place(microphone),
                    source=_place(source),
                    others=tuple(map(_place, others)),
                    t60=round(t60, 4),
                    high_t60=high,
                    redraws=redraws,
                )
        raise UserError(
            f"simulation: in {_MAX_REDRAWS} draws no room had a reverberation time of "
            f"{t60:.2f} s and a place for the speaker",
            remedy="allow smaller rooms (length, width, height), a longer t60, another "
            "distance, less from_wall, a microphone farther from walls, or a smaller "
            "array",
        )

    def _draw_movement(
        self, rng: np.random.Generator, room: RoomDraw, seconds: float
    ) -> MovementDraw | None:
        """Draw the way of a speaker: level, and away from walls and microphones."""
        rooms = self._options.rooms
        assert isinstance(rooms, GeneratedRooms)
        options = rooms.movement
        if options is None or rng.random() >= options.probability:
            return None
        speed = drawn(options.speed, rng)
        source, microphone = np.array(room.source), np.array(room.microphone)
        gap = float(np.linalg.norm(source - microphone))
        radius = self._array.radius if self._array else 0.0
        longest, end = 0.0, source
        for _ in range(_MAX_WAYS):
            angle = rng.uniform(0, 2 * math.pi)
            ahead = np.array([math.cos(angle), math.sin(angle), 0.0])
            far_walls = np.subtract(room.size, rooms.from_wall)
            walls = np.where(ahead > 0, far_walls, rooms.from_wall)
            to_wall = float(((walls - source)[:2] / ahead[:2]).min())
            length = min(speed * seconds, to_wall)
            passing = np.clip((microphone - source) @ ahead, 0.0, max(length, 0.0))
            nearest = np.linalg.norm(source + passing * ahead - microphone)
            if length > longest and nearest >= min(gap, _LEAST_GAP + radius):
                longest, end = length, source + length * ahead
            if longest >= speed * seconds:
                break
        return MovementDraw(end=_place(end), speed=speed, step=options.step)

    def _draw_noises(
        self, name: str, rng: np.random.Generator, places: Iterator[Place | None]
    ) -> Iterator[NoiseDraw]:
        options = self._options.noises[name]
        if rng.random() >= options.probability:
            return
        if isinstance(options, GeneratedNoise):
            yield NoiseDraw(
                name=name,
                spectrum=options.spectrum,
                seed=int(rng.integers(1 << 32)),
                snr=drawn(options.snr, rng),
            )
            return
        files = self.audio.of(f"noises.{name}")
        for _ in range(options.number):
            yield NoiseDraw(
                name=name,
                file=files[int(rng.integers(len(files)))],
                begin=float(rng.random()),
                snr=drawn(options.snr, rng),
                place=next(places) if options.place == "point" else None,
            )

    def _draw_speakers(
        self,
        options: SpeakerOptions | None,
        rng: np.random.Generator,
        utt_id: str,
        num_samples: int,
        places: Iterator[Place | None],
    ) -> Iterator[SpeakerDraw]:
        """Draw other speakers, each another one."""
        if options is None or rng.random() >= options.probability:
            return
        speech = self._speech
        there = {speech.speaker(speech.position(utt_id))}
        number = options.number
        if not isinstance(number, int):
            number = round(drawn(number, rng))
        for _ in range(number):
            i = self._other(rng, there)
            there.add(speech.speaker(i))
            length = speech.num_samples(i)
            both = min(round(drawn(options.overlap, rng) * num_samples), length)
            late = num_samples - both
            if both == length:  # shorter: anywhere within
                offset = int(rng.integers(late + 1))
            else:
                offset = int(rng.choice([both - length, late]))
            yield SpeakerDraw(
                utterance=speech.utt_id(i),
                offset=offset,
                sir=drawn(options.sir, rng),
                overlap=round(both / num_samples, 4),
                place=next(places),
            )

    def _other(self, rng: np.random.Generator, there: set[str]) -> int:
        """Draw an utterance of a speaker who is not there yet."""
        count = len(self._speech)
        for _ in range(_MAX_SPEAKER_DRAWS):
            i = int(rng.integers(count))
            if self._speech.speaker(i) not in there:
                return i
        others = self._others(frozenset(there))  # of a set that one speaker fills
        if len(others):
            return int(others[rng.integers(len(others))])
        raise UserError(
            "simulation: the set has no utterance of another speaker than "
            f"{', '.join(sorted(there))}",
            remedy="leave speakers out, or take a set of more speakers",
        )

    def _list_others(self, there: frozenset[str]) -> np.ndarray:
        """Return the numbers of utterances of speakers who are not there yet."""
        codes, speakers = self._speakers
        known = [codes[name] for name in there]
        return np.flatnonzero(~np.isin(speakers, known))

    @cached_property
    def _speakers(self) -> tuple[dict[str, int], np.ndarray]:
        """Codes of the speakers, and that of each utterance's, int64[N]."""
        codes: dict[str, int] = {}
        speakers = map(self._speech.speaker, range(len(self._speech)))
        return codes, np.array([codes.setdefault(s, len(codes)) for s in speakers])


def _draw_device(
    options: DeviceOptions | None, rng: np.random.Generator
) -> DeviceDraw | None:
    if options is None or rng.random() >= options.probability:
        return None
    is_telephone = bool(rng.random() < options.telephone)
    effects = {
        name: drawn(distribution, rng)
        for name in ("gain", "low_cut", "high_cut", "clipped")
        if (distribution := getattr(options, name)) is not None
    }
    return DeviceDraw(telephone=is_telephone, **effects)


def _free_places(
    room: RoomDraw, rng: np.random.Generator, taken: set[Place]
) -> Iterator[Place]:
    """Yield places of a room in turn, from one that is drawn on.

    Places that are taken are left out, until all are: then sources share them.
    """
    first = int(rng.integers(len(room.others)))
    for place in islice(cycle(room.others), first, None):
        if place not in taken or len(taken) == len(room.others):
            taken.add(place)
            yield place


def _least_distance(places: np.ndarray) -> float:
    """Return the least distance of two of some places, float64 [N, 3], m."""
    between = np.linalg.norm(places[:, None] - places, axis=-1)
    return float(between[np.triu_indices(len(places), 1)].min())


def _direction(rng: np.random.Generator) -> np.ndarray:
    """Draw a direction, at most 45 degrees up or down: heads are not overhead."""
    around = rng.uniform(0, 2 * math.pi)
    up = rng.uniform(-math.sqrt(0.5), math.sqrt(0.5))
    flat = math.sqrt(1 - up**2)
    return np.array([flat * math.cos(around), flat * math.sin(around), up])


def _place(point: np.ndarray) -> Place:
    """Return a place to the millimetre."""
    x, y, z = (round(float(c), 3) for c in point)
    return x, y, z
