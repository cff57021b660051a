"""Options of simulation: what recordings are made to sound like, as distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from latflow.corpus.options import CorpusOptions, NoSource, SetName
from latflow.options import Fraction, Free, Name, Options, PositiveInt, Text
from latflow.simulation.distributions import (
    TAGGED,
    Choice,
    ClippedShare,
    Decibels,
    Degrees,
    Hertz,
    HighShare,
    Metres,
    MetresPerSecond,
    Others,
    OverlapShare,
    Pause,
    RoomMetres,
    Seconds,
    Share,
    Speakers,
    Uniform,
)

Spectrum = Literal["white", "pink", "hoth"]
Count = Annotated[int, Field(ge=1, le=8)]
Place = tuple[float, float, float]
_MAX_RADIUS = 5.0  # of arrays, m


class MovementOptions(Options):
    """Speakers who walk in a straight line while they speak, and stop at its end."""

    probability: Fraction = 1.0
    """Share of the utterances in a room whose speaker walks."""
    speed: MetresPerSecond = Uniform(low=0.2, high=1.0)
    """Speed, m/s."""
    step: Annotated[float, Field(ge=0.01, le=1)] = 0.1
    """Greatest distance of the points of the line whose responses are computed, m;
    between two of them one fades into the other. Half of it takes twice the time."""


class GeneratedRooms(Options):
    """Rooms whose responses are computed (image method, see docs/simulation.md)."""

    type: Literal["generated"] = "generated"
    probability: Fraction = 1.0
    """Share of the simulated utterances that are in a room."""
    number: PositiveInt = 200
    """Different rooms, with a place of the microphone and of each source; an utterance
    is put into one of them. Responses are kept (`cache_mb`), so that fewer rooms cost
    less time."""
    t60: Seconds = Uniform(low=0.1, high=0.5)
    """Reverberation time, s. That measured between speaker and microphone is within
    10 % of it (without `high_t60`): the reflection of the walls is corrected until it
    is. From places of noises and other speakers it is up to a quarter off."""
    high_t60: HighShare | None = None
    """Reverberation time at 8 kHz, as a share of `t60`, which is then that up to 1 kHz;
    it falls from octave to octave. null for walls that absorb all frequencies alike."""
    length: RoomMetres = Uniform(low=2.5, high=10.0)
    """Length of the room, m. Sizes are drawn again where the room cannot have the
    reverberation time, which is counted."""
    width: RoomMetres = Uniform(low=2.5, high=10.0)
    """Width of the room, m."""
    height: RoomMetres = Uniform(low=2.5, high=4.0)
    """Height of the room, m."""
    microphone_x: Share = Uniform(low=0.2, high=0.8)
    """Place of the microphone, or of the middle of the array, along the length of the
    room, as a share of it."""
    microphone_y: Share = Uniform(low=0.2, high=0.8)
    """The same along its width."""
    microphone_z: Share = Uniform(low=0.4, high=0.6)
    """The same along its height. Rooms in which a source or the microphone would be too
    near a wall are drawn again."""
    distance: Metres = Uniform(low=0.5, high=3.0)
    """Distance of the speaker from the microphone, m; drawn again, with the room, where
    there is no such place. Other sources are anywhere in the room."""
    from_wall: Annotated[float, Field(ge=0.05, le=5)] = 0.5
    """Least distance of sources and microphone from walls, m."""
    movement: MovementOptions | None = None
    """Movement of the speaker; null for none."""


class MeasuredRooms(Options):
    """Rooms whose responses were measured."""

    type: Literal["measured"] = "measured"
    probability: Fraction = 1.0
    """Share of the simulated utterances that are in a room."""
    files: Text
    """Folder of impulse responses (searched with all below it), or a pattern such as
    `rirs/Uni*.flac`; of several channels the first is taken. Noises and other speakers
    keep the room that they were recorded in."""


class RecordedNoise(Options):
    """Noise from recordings."""

    type: Literal["recorded"] = "recorded"
    files: Text
    """Folder of recordings (searched with all below it), or a pattern such as
    `noise/rain*.flac`; of several channels the first is taken. Silence at the ends is
    left out, another sample rate is resampled, and noise that is shorter than the
    utterance repeats."""
    place: Literal["point", "everywhere"] = "point"
    """Place of the noise: at a point of the room (where the utterance is in a generated
    one), or `everywhere` as it was recorded (isotropic noise)."""
    snr: Decibels = Uniform(low=0.0, high=20.0)
    """Power of the speech, as it arrives, over that of the noise, dB; of each noise
    where there are several."""
    probability: Fraction = 1.0
    """Share of the simulated utterances that have this noise."""
    number: Count = 1
    """Noises of this kind at a time."""


class GeneratedNoise(Options):
    """Stationary noise with a spectrum, from everywhere."""

    type: Literal["generated"] = "generated"
    spectrum: Spectrum = "hoth"
    """Spectrum: even, falling by 3 dB an octave, or that of a room by Hoth (ITU-T
    P.800)."""
    snr: Decibels = Uniform(low=10.0, high=30.0)
    """Power of the speech, as it arrives, over that of the noise, dB."""
    probability: Fraction = 1.0
    """Share of the simulated utterances that have this noise."""


class SpeakerOptions(Options):
    """Other speakers, who say other utterances of the same set meanwhile."""

    probability: Fraction = 1.0
    """Share of the simulated utterances that others speak in."""
    number: Annotated[int, Field(ge=1, le=2)] | Others = 1
    """Other speakers, 1 or 2; or a distribution of 0 to 2, rounded: {type: choice, of:
    [0, 1, 2]} for 1 to 3 speakers in all."""
    sir: Decibels = Uniform(low=-2.5, high=2.5)
    """Power of the utterance, as it arrives, over that of the other one, each over its
    own duration, dB."""
    overlap: Share = Uniform(low=0.1, high=1.0)
    """Share of the utterance's time that another speaks in: at its beginning or its
    end, or within where the other utterance is shorter than that."""


class DeviceOptions(Options):
    """Effects of the recording device, in this order."""

    probability: Fraction = 1.0
    """Share of the simulated utterances that have them."""
    gain: Decibels | None = None
    """Gain, dB; what is then above full scale is cut off."""
    low_cut: Hertz | None = None
    """Lower edge of the band that is left, Hz."""
    high_cut: Hertz | None = None
    """Upper edge of the band that is left, Hz."""
    clipped: ClippedShare | None = None
    """Share of the samples that are cut off at one level (0.01 is audible, 0.1 is
    heavy), at most 0.9."""
    telephone: Fraction = 0.0
    """Share of these utterances that go over a telephone line: 8 kHz, mu-law."""

    @model_validator(mode="after")
    def _check_band(self) -> Self:
        """Refuse a band with nothing in it."""
        if self.low_cut is not None and self.high_cut is not None:
            low, high = self.low_cut.bounds[1], self.high_cut.bounds[0]
            if low >= high:
                raise ValueError(
                    f"low_cut of {low:g} Hz is not below high_cut of {high:g} Hz"
                )
        return self


class ArrayOptions(Options):
    """An array of microphones that takes the place of the one in the room."""

    microphones: Annotated[tuple[Place, ...], Field(min_length=2, max_length=8)]
    """Places of the microphones, m, each as [x, y, z] from the middle of the array, z
    upwards, at most 5 m from it; channels in this order."""
    turn: Degrees = Uniform(low=0.0, high=360.0)
    """How far the array is turned in a room, around the vertical, degrees."""

    @property
    def radius(self) -> float:
        """Distance of the farthest microphone from the middle, m."""
        return max(math.hypot(*place) for place in self.microphones)

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        """Refuse two microphones at one place, and one far away."""
        if len(set(self.microphones)) < len(self.microphones):
            raise ValueError("two microphones are at one place")
        if self.radius > _MAX_RADIUS:
            raise ValueError(
                f"a microphone is {self.radius:g} m from the middle of the array; at "
                f"most {_MAX_RADIUS:g} m"
            )
        return self


class SimulationOptions(Options):
    """Rooms, noises, other speakers and devices that utterances are put into.

    What an utterance gets follows from the seed, its id and the pass over the data.
    """

    probability: Fraction = 1.0
    """Share of the utterances that are simulated; the others stay unchanged."""
    rooms: Annotated[GeneratedRooms | MeasuredRooms, TAGGED] | None = None
    """Rooms; null for none."""
    noises: dict[Name, Annotated[RecordedNoise | GeneratedNoise, TAGGED]] = Field(
        default_factory=dict
    )
    """Noises by a name of their kind, which add up."""
    speakers: SpeakerOptions | None = None
    """Other speakers; null for none."""
    device: DeviceOptions | None = None
    """Effects of the recording device; null for none."""
    array: ArrayOptions | None = None
    """Several microphones, whose channels are made; null for one."""
    cache_mb: Free[PositiveInt] = 200
    """Responses and noises that are kept in memory for their next use, MB; the longest
    unused go first."""

    @model_validator(mode="after")
    def _check_anything(self) -> Self:
        of_sets = (getattr(self, name, None) for name in ("conversation", "records"))
        kinds = (self.rooms, self.noises, self.speakers, self.device, *of_sets)
        if not any(kinds):
            raise ValueError("name rooms, noises, speakers or device")
        if self.array is not None and isinstance(self.rooms, MeasuredRooms):
            raise ValueError("an array needs rooms of type generated, or none")
        return self

    @property
    def num_channels(self) -> int:
        """Channels of what is simulated."""
        return 1 if self.array is None else len(self.array.microphones)

    @property
    def recordings(self) -> dict[str, str]:
        """Folders and patterns of recordings that are needed, by the key they are of.

        Keys are `rooms`, of measured ones, and `noises.<name>`.
        """
        noises = {f"noises.{name}": noise for name, noise in self.noises.items()}
        kinds: dict[str, Options | None] = {"rooms": self.rooms, **noises}
        return {
            key: options.files
            for key, options in kinds.items()
            if isinstance(options, MeasuredRooms | RecordedNoise)
        }

    @property
    def files(self) -> list[str]:
        """Folders and patterns of recordings that are needed."""
        return list(self.recordings.values())


EarlyMs = Annotated[float, Field(gt=0, le=1000)]


class CleanTarget(Options):
    """Features of the speech without its room and all that was added."""

    type: Literal["clean"] = "clean"


class EarlyTarget(Options):
    """Features of the speech with the early reflections of its room alone."""

    type: Literal["early"] = "early"
    early_ms: EarlyMs = 50.0
    """How long the room's response counts, from the direct path on, ms."""


class MaskTarget(Options):
    """Ideal ratio mask: (S / (S + R)) ** exponent in each bin of each frame.

    S is the power of the wanted speech, R that of all else in the mixture, before the
    device: noises, other speakers, later reflections (Wang, Narayanan and Wang 2014).
    """

    type: Literal["ratio_mask"] = "ratio_mask"
    domain: Literal["mel", "stft"] = "mel"
    """Bins: the mel filters of the features, or the lines of their spectrum."""
    exponent: Annotated[float, Field(gt=0, le=4)] = 0.5
    """1 for the share of power, 0.5 for its square root (a share of amplitude)."""
    early_ms: EarlyMs | None = 50.0
    """Reflections of the speech that are wanted, ms from the direct path on; null for
    all of them."""


Target = Annotated[CleanTarget | EarlyTarget | MaskTarget, TAGGED]


class SimulationDraws(SimulationOptions):
    """Simulation of utterances when they are read, drawn again in each pass.

    Labels stay right: sound arrives when it did, and no utterance gets longer. An array
    hears the channel of the utterance, and is for features of its channels.
    """

    fresh_every: PositiveInt = 1
    """Passes over the data for which an utterance keeps its draws."""
    targets: dict[Name, Target] = Field(default_factory=dict)
    """What outputs with `loss: mse` may learn, by the names that they give as `target`.
    With targets dev is simulated too, alike in each evaluation."""

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        if self.targets and self.array is not None:
            raise ValueError("targets: are of one microphone; leave them or array out")
        return self

    def why_not_of(self, channels: Sequence[int] | None) -> tuple[str, str] | None:
        """Return why features of some channels cannot be simulated, and the remedy.

        Args:
            channels: option of the features.

        Returns:
            None where they can be.
        """
        if channels is None and self.array is not None:
            return (
                "has an array, and the features are of one channel",
                "name its microphones in channels of the features, as [0, 1], or "
                "leave array out",
            )
        if channels is not None and self.array is None:
            return (
                "has no array, and the features are of several channels",
                "give array as many microphones, or set channels: null",
            )
        if channels is not None and max(channels) >= self.num_channels:
            return (
                f"has an array of {self.num_channels} microphones, and the features "
                f"are of the channel {max(channels)}, counted from 0",
                "give array more microphones, or name other channels",
            )
        return None


class ConversationOptions(Options):
    """Conversations, in which each utterance of the set occurs once.

    Speakers take turns: another one begins before the last has ended, or after a pause.
    """

    speakers: Speakers = Choice(of=(2.0, 3.0))
    """Speakers of a conversation (rounded); fewer where the set has no more with
    anything left to say."""
    duration: Annotated[float, Field(ge=1, le=7200)] = 60.0
    """Length, s, that ends a conversation once it is reached, with the end of an
    utterance."""
    overlap: OverlapShare = Choice(of=(0.2,))
    """Share of the time with speech in which two speak, over the set; 0 for never."""
    overlap_probability: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the turns that begin before the last has ended; more where `overlap`
    needs them."""
    pause: Pause = Uniform(low=0.5, high=1.5)
    """Silence before the other turns, s, and behind the last."""
    level: Decibels = Choice(of=(0.0,))
    """Change of the level of a speaker's utterances in a conversation, dB."""


class SimulatedSetOptions(SimulationOptions):
    """A stored set, made of another one: the same utterances, simulated."""

    of: str
    """Set that it is made of: `dev`, or one of `corpus.test`."""
    conversation: ConversationOptions | None = None
    """Utterances are put into conversations, which are then what is simulated; null
    leaves each by itself."""
    records: Text | None = None
    """File of records (`records.jsonl` of a simulated set), which are done again in the
    place of draws; null for draws. Of the other options only those go with it that say
    where recordings are, `noises.<name>.files` and `rooms.files` of measured rooms
    (names in the file are relative to these folders), `array.microphones` for their
    number, and `cache_mb`."""

    @property
    def purpose(self) -> str:
        """Purpose of its rooms; sets that are made of one set share them."""
        return f"set made of {self.of}"

    @model_validator(mode="after")
    def _check_conversation(self) -> Self:
        if self.conversation is not None and self.speakers is not None:
            raise ValueError("speakers: conversation has its own speakers")
        walks = isinstance(self.rooms, GeneratedRooms) and self.rooms.movement
        if self.conversation is not None and walks:
            raise ValueError("rooms.movement: speakers of a conversation stay")
        return self

    @model_validator(mode="after")
    def _check_records(self) -> Self:
        """Refuse draws where there are records."""
        drawn = [] if self.records is None else list(self._drawn_keys())
        if drawn:
            raise ValueError(f"records say what is drawn; leave out {', '.join(drawn)}")
        return self

    def _drawn_keys(self) -> Iterator[str]:
        """Yield the keys of draws that are not at their defaults."""
        noises = {f"noises.{name}": noise for name, noise in self.noises.items()}
        kinds: dict[str, Options | None] = {
            "rooms": self.rooms,
            "array": self.array,
            **noises,
        }
        others = ("rooms", "array", "noises")
        yield from _set_but(self, "of", "records", "cache_mb", *others)
        for key, options in kinds.items():
            if isinstance(options, GeneratedRooms | GeneratedNoise):
                yield key
            elif options is not None:
                names = _set_but(options, "files", "microphones")
                yield from (f"{key}.{name}" for name in names)


def _set_but(options: Options, *left_out: str) -> Iterator[str]:
    """Yield the names of options that are not at their defaults, but for some."""
    for name, field in type(options).model_fields.items():
        default = field.get_default(call_default_factory=True)
        if name not in left_out and getattr(options, name) != default:
            yield name


class CorpusSectionOptions(CorpusOptions):
    """Sources of recordings and transcripts, and sets made of them.

    A training set, a dev set (its own source, or held out of train) and named test
    sets. Without a dev set nothing is decoded: systems are trained, and align.
    """

    simulated: dict[SetName, SimulatedSetOptions] = Field(default_factory=dict)
    """Test sets, by name, that are made of others by simulation; see
    docs/simulation.md. An utterance has the same noise and the same room in all of
    them, except where their options differ."""

    @model_validator(mode="after")
    def _check_simulated(self) -> Self:
        """Refuse sets made of no set, and two sets of one name."""
        for name, options in self.simulated.items():
            if name in {*self.test, *self.perturbed, *self.cleaned, *self.paused}:
                raise ValueError(f"simulated.{name}: another set has this name")
            dev = [] if isinstance(self.dev, NoSource) else ["dev"]
            if options.of not in {*dev, *self.test}:
                known = ", ".join([*dev, *self.test]) or "none"
                raise ValueError(
                    f"simulated.{name}.of: no {options.of!r}; there are {known}"
                )
        return self
