"""What is done to an utterance, as data: written, read, done again.

A `Record` says all: the room, the places of all sources, which noise from where on, at
which ratio. `latflow.simulation.drawing` draws them, `latflow.simulation.simulator`
does what they say.

Public: `Record` and its parts, `Speech`, `record_line`, `read_records`, `list_audio`.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from latflow.errors import UserError
from latflow.files import read_lines
from latflow.options import Options, read_options
from latflow.simulation.options import Place

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
    t60: float
    """Reverberation time, s."""
    high_t60: float | None = None
    """Reverberation time at 8 kHz over that; None for the same."""
    redraws: int
    """Rooms drawn before it that could not be."""


class MovementDraw(Options):
    """Way of a speaker, who walks from `room.source` in a straight line."""

    end: Place
    """Where the speaker stops, if the utterance is long enough."""
    speed: float
    """Speed, m/s."""
    step: float
    """Greatest distance of points whose responses are computed, m."""


class NoiseDraw(Options):
    """A noise."""

    name: str
    """Kind of noise, of the options."""
    file: str | None = None
    """Recording; None for a generated noise."""
    spectrum: str | None = None
    """Spectrum of a generated noise."""
    begin: float = 0.0
    """Where in the recording it begins, as a share of the places where it need not
    repeat, or of its length; see `cut_noise`."""
    seed: int = 0
    """Of a generated noise."""
    snr: float
    """Power of the speech over that of the noise, dB."""
    place: Place | None = None
    """Place in the room; None for everywhere."""


class SpeakerDraw(Options):
    """Another speaker."""

    utterance: str
    """What is said: id of an utterance of the same set."""
    offset: int
    """When the other one begins, samples from the start of the utterance."""
    sir: float
    """Power of the utterance over that of the other one, dB."""
    overlap: float
    """Share of the utterance's time in which both speak."""
    place: Place | None = None
    """Place in the room; None where there is no room."""


class DeviceDraw(Options):
    """Effects of the device; None for those it has not."""

    gain: float | None = None
    low_cut: float | None = None
    high_cut: float | None = None
    clipped: float | None = None
    telephone: bool = False


class TurnDraw(Options):
    """An utterance of a conversation."""

    utterance: str
    """What is said: id of an utterance of the set."""
    speaker: str
    offset: int
    """When it begins, samples from the start of the conversation."""
    num_samples: int
    """Its length."""
    level: float
    """Change of its level, dB."""
    place: Place | None = None
    """Place of the speaker; None where there is no generated room."""


class Record(Options):
    """All that is done to an utterance, or to a conversation."""

    utterance: str
    """Id of the utterance, or of the conversation."""
    whole_pass: int
    """Pass over the data that it was drawn for, from 0."""
    rate: int
    """Sample rate, Hz."""
    num_samples: int
    """Length of the utterance."""
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
        """Tell whether anything is done to the utterance."""
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
        UserError: there is none.
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


def record_line(record: Record) -> str:
    """Return a record as a line of a file of records."""
    return json.dumps(record.values()) + "\n"


def read_records(path: str | Path) -> Iterator[Record]:
    """Yield the records of a file.

    Raises:
        UserError: the file is missing, or a line is no record.
    """
    for number, line in read_lines(path):
        try:
            yield read_options(Record, json.loads(line), f"line {number}")
        except (ValueError, UserError) as error:
            raise UserError(
                f"line {number} is no record of a simulation ({error})", file=path
            ) from error
