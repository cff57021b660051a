"""What is done to an utterance, as data: written, read, done again.

A `Record` says all: the room, the places of all sources, which noise from where on, at
which ratio. `latflow.simulation.drawing` draws them, `latflow.simulation.simulator`
does what they say.

A file of records has a line of JSON for each. Recordings are there named relative to
the folder that the options name for them, so that it holds on another machine; see
`AudioFiles`.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from latflow.corpus.derived_options import Speed
from latflow.errors import UserError
from latflow.options import (
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    Text,
    read_options,
)
from latflow.simulation.options import Place, SimulationOptions, Spectrum
from latflow.text_files import read_json_lines

Level = Annotated[float, Field(ge=-100, le=100)]  # dB
AUDIO = (".flac", ".wav", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".sph", ".w64")


class RoomDraw(Options):
    """A room; lengths in m, the places from a lower corner."""

    number: int
    size: Place
    microphone: Place
    source: Place
    """Place of the speaker."""
    others: tuple[Place, ...]
    """Places of further sources, taken in turn."""
    t60: Annotated[float, Field(gt=0, le=10)]
    """Reverberation time, s."""
    high_t60: Annotated[float, Field(gt=0, le=1)] | None = None
    """Reverberation time at 8 kHz over that; None for the same."""
    redraws: int
    """Rooms drawn before it that could not be."""


class MovementDraw(Options):
    """Way of a speaker, who walks from `room.source` in a straight line."""

    end: Place
    """Where the speaker stops, if the utterance is long enough."""
    speed: NonNegativeFloat
    """Speed, m/s."""
    step: PositiveFloat
    """Greatest distance of points whose responses are computed, m."""


class NoiseDraw(Options):
    """A noise."""

    name: str
    """Kind of noise, of the options."""
    file: str | None = None
    """Recording; None for a generated noise."""
    spectrum: Spectrum | None = None
    """Spectrum of a generated noise."""
    begin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Where in the recording it begins, as a share of the places where it need not
    repeat, or of its length; see `cut_noise`."""
    seed: NonNegativeInt = 0
    """Of a generated noise."""
    snr: Level
    """Power of the speech over that of the noise, dB."""
    place: Place | None = None
    """Place in the room; None for everywhere."""


class SpeakerDraw(Options):
    """Another speaker."""

    utterance: str
    """Id of an utterance of the same set."""
    offset: int
    """When the other one begins, samples from the start of the utterance."""
    sir: Level
    """Power of the utterance over that of the other one, dB."""
    overlap: float
    """Share of the utterance's time in which both speak."""
    place: Place | None = None
    """Place in the room; None where there is no room."""


class DeviceDraw(Options):
    """Effects of the device; None for those it has not."""

    gain: Level | None = None
    low_cut: PositiveFloat | None = None
    high_cut: PositiveFloat | None = None
    clipped: Annotated[float, Field(ge=0, lt=1)] | None = None
    telephone: bool = False


class TurnDraw(Options):
    """An utterance of a conversation."""

    utterance: str
    """Id of an utterance of the set."""
    speaker: str
    offset: NonNegativeInt
    """When it begins, samples from the start of the conversation."""
    num_samples: PositiveInt
    """Its length."""
    level: Level
    """Change of its level, dB."""
    place: Place | None = None
    """Place of the speaker; None where there is no generated room."""


def _is_none(value: float | None) -> bool:
    """Return whether a value is left out of files."""
    return value is None


class Record(Options):
    """All that is done to an utterance, or to a conversation."""

    utterance: Text
    """Id of the utterance, or of the conversation."""
    whole_pass: NonNegativeInt
    """Pass over the data that it was drawn for, from 0."""
    rate: PositiveInt
    """Sample rate, Hz."""
    num_samples: PositiveInt
    """Length of the utterance, at its speed here."""
    speed: Speed | None = Field(default=None, exclude_if=_is_none)
    """Speed that it is first brought to, of a training that draws it: factor of
    frequencies, and of the inverse of the duration."""
    volume: PositiveFloat | None = Field(default=None, exclude_if=_is_none)
    """Volume that it has in the end, of a training: factor of samples, that of the
    manifest by that drawn."""
    array: tuple[Place, ...] | None = None
    """Places of the microphones from `room.microphone`, m; None for one microphone."""
    room: RoomDraw | None = None
    movement: MovementDraw | None = None
    """None where the speaker stays, and where there is no room."""
    response: str | None = None
    """File with the measured response of a room."""
    noises: tuple[NoiseDraw, ...] = ()
    speakers: tuple[SpeakerDraw, ...] = ()
    device: DeviceDraw | None = None
    turns: tuple[TurnDraw, ...] = ()
    """Of a conversation: its utterances, in the order in which they begin."""

    @property
    def is_simulated(self) -> bool:
        """Return whether anything but its speed and volume is changed."""
        added = self.noises or self.speakers or self.turns
        return bool(self.room or self.response or added or self.device)


class Speech(Protocol):
    """Utterances that are simulated, or that others say meanwhile."""

    def __len__(self) -> int: ...

    def utt_id(self, i: int) -> str:
        """Return the id of utterance i."""
        ...

    def position(self, utt_id: str) -> int:
        """Return the number of an utterance; KeyError if there is none."""
        ...

    def speaker(self, i: int) -> str:
        """Return the speaker of utterance i."""
        ...

    def num_samples(self, i: int) -> int:
        """Return the samples of utterance i."""
        ...

    def samples(self, i: int) -> np.ndarray:
        """Return the samples of utterance i, float32 [L]."""
        ...


def list_audio(files: str) -> list[str]:
    """Return the audio files of a folder, with all below it, or of a pattern; sorted.

    Raises:
        UserError: none was found.
    """
    path = Path(files)
    if path.is_dir():
        names = (str(p) for p in path.rglob("*") if p.suffix.lower() in AUDIO)
    else:
        names = glob.iglob(files, recursive=True)
    found = sorted(os.path.abspath(name) for name in names if os.path.isfile(name))
    if not found:
        raise UserError(
            "no audio for the simulation",
            file=files,
            remedy="name a folder of recordings, or a pattern that finds some",
        )
    return found


class AudioFiles:
    """Recordings that the options of a simulation name, by the key they are of.

    Records in memory name them by their absolute paths; in files of records they are
    relative to the folder of their key: that which is named, or of a pattern the one
    before its first wildcard.

    Args:
        options: see `SimulationOptions.recordings`.

    Raises:
        UserError: a folder or pattern names no audio.
    """

    def __init__(self, options: SimulationOptions) -> None:
        self._named = options.recordings
        self._files = {key: list_audio(files) for key, files in self._named.items()}
        self._known = {key: set(files) for key, files in self._files.items()}

    def of(self, key: str) -> list[str]:
        """Return the absolute paths of the recordings of a key, sorted."""
        return self._files[key]

    def relative(self, record: Record) -> Record:
        """Return a record as files of records have it."""

        def name(key: str, file: str) -> str:
            return os.path.relpath(file, _folder(self._named[key]))

        return _with_files(record, name)

    def absolute(self, record: Record) -> Record:
        """Return a record of a file as the simulation has it.

        Raises:
            UserError: a recording is not among those of the options.
        """

        def find(key: str, file: str) -> str:
            if key not in self._known:
                kind = "measured" if key == "rooms" else "recorded"
                raise UserError(
                    f"has {file} of {key}, which the options do not name",
                    utterance=record.utterance,
                    remedy=f"give {key} the type {kind}, and the folder as files",
                )
            path = os.path.normpath(os.path.join(_folder(self._named[key]), file))
            if path not in self._known[key]:
                raise UserError(
                    f"has {file}, which is not among the recordings of {key} "
                    f"({self._named[key]})",
                    utterance=record.utterance,
                    remedy=f"name the recordings that it was drawn from in {key}.files",
                )
            return path

        return _with_files(record, find)


def _with_files(record: Record, change: Callable[[str, str], str]) -> Record:
    """Return a record with other names of recordings: change(key, name)."""

    def changed(noise: NoiseDraw) -> NoiseDraw:
        if noise.file is None:
            return noise
        file = change(f"noises.{noise.name}", noise.file)
        return noise.model_copy(update={"file": file})

    response = record.response and change("rooms", record.response)
    noises = tuple(map(changed, record.noises))
    return record.model_copy(update={"noises": noises, "response": response})


def _folder(files: str) -> Path:
    """Return the folder that all audio of a folder, or of a pattern, lies below."""
    path = Path(os.path.abspath(files))
    if path.is_dir():
        return path
    return Path(*takewhile(lambda part: not glob.has_magic(part), path.parts[:-1]))


def record_line(record: Record) -> str:
    """Return a record as a line of a file of records; see `AudioFiles.relative`."""
    return json.dumps(record.values()) + "\n"


def read_records(path: str | Path) -> Iterator[Record]:
    """Yield the records of a file; see `AudioFiles.absolute`.

    Raises:
        UserError: the file is missing, or a line is not a record.
    """

    def make(values: dict[str, Any]) -> Record:
        try:
            return read_options(Record, values)
        except UserError as error:
            raise ValueError(error) from error

    remedy = "take the file that a simulation has written"
    return read_json_lines(path, make, "a record of a simulation", remedy)
