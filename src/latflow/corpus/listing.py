"""Corpora that are listed by file: audio of some paths, transcripts of some kind.

A source (`latflow.corpus.folder`, `latflow.corpus.table`) lists what it finds; `write`
then looks at the audio, and writes the corpus folder. What does not fit together, audio
without transcript and transcripts without audio, is kept as a fault.
"""

from __future__ import annotations

import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from lhotse import AudioSource, SupervisionSegment

from latflow.corpus.assemble import CorpusWriter, RecordingJob
from latflow.corpus.audio import probe
from latflow.corpus.ids import Ids, plain_id
from latflow.corpus.json_lines import Spool
from latflow.ledger import Ledger


@dataclass
class AudioFile:
    """An audio file; `id` is its recording's."""

    id: str
    path: str

    def to_dict(self) -> dict[str, Any]:
        """Turn into what JSON can hold."""
        return asdict(self)


@dataclass
class Part:
    """An utterance: all of a recording, or a part of it.

    Attributes:
        id: of the utterance.
        recording_id: its recording.
        text: the transcript as it stands there.
        speaker: None where none is known.
        origin: file (and line) of the transcript, for messages.
        start: seconds from the beginning of the recording.
        end: likewise; None for the end of the recording.
    """

    id: str
    recording_id: str
    text: str
    speaker: str | None
    origin: str
    start: float = 0.0
    end: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Turn into what JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class Fault:
    """An utterance that is not whole: why, where it stands, and what can be done."""

    utterance: str
    reason: str
    file: str
    remedy: str


class Listing:
    """Audio files and utterances of a source; use as a context manager.

    Memory holds their ids, and the faults.

    Args:
        folder: where temporary files lie; None for the system's place.

    Attributes:
        files: by id of the recording.
        parts: by id of the utterance.
        faults: in the order of their finding.
        notes: of ids that are not what the files are called.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        place = folder or tempfile.gettempdir()
        self._stack = ExitStack()
        self.files = self._stack.enter_context(Spool(place, _audio_file))
        self.parts = self._stack.enter_context(Spool(place, _part))
        self.faults: list[Fault] = []
        self.notes = Ledger("listing")
        self._ids = Ids("file", self.notes, self.files)

    def add_file(self, path: Path, inside: Path) -> str:
        """Add an audio file.

        Args:
            path: of the file.
            inside: the same below the folder of the corpus.

        Returns:
            The id of its recording: see `file_id`, with a number behind it where
            another file has that one.
        """
        recording_id = self._ids.name(str(inside), file_id(inside))
        self.files.add(AudioFile(recording_id, str(path)), file=path)
        return recording_id

    def add_part(self, part: Part, recording_id: str) -> None:
        """Add an utterance of a recording, whose id comes before the part's own.

        A number distinguishes those that begin in the same millisecond.
        """
        wanted, number = recording_id + part.id, 2
        part.id = wanted
        while part.id in self.parts:
            part.id, number = f"{wanted}-{number}", number + 1
        part.recording_id = recording_id
        self.parts.add(part, file=part.origin)

    def has_file(self, inside: Path) -> bool:
        """Return whether a file was added, by its path below the corpus's folder."""
        return self._ids.known(str(inside)) in self.files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _audio_file(values: dict[str, Any]) -> AudioFile:
    """Make an audio file of its dictionary."""
    return AudioFile(**values)


def _part(values: dict[str, Any]) -> Part:
    """Make an utterance of its dictionary."""
    return Part(**values)


def write_listing(
    listing: Listing,
    writer: CorpusWriter,
    ledger: Ledger,
    *,
    verify: bool,
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Give a listing to a writer.

    Args:
        listing: of a folder or a table.
        writer: of the corpus folder.
        ledger: where ids are noted that are not what files are called.
        verify: whether all audio is decoded.
        threads: audio files looked at at a time.
        max_skipped_fraction: largest share of utterances that may be skipped.

    Raises:
        UserError: an utterance is bad and not to be skipped, or too many are.
    """
    jobs: Iterator[RecordingJob] = (
        (
            file.id,
            partial(probe, file.id, AudioSource("file", [0], file.path), verify=verify),
        )
        for file in listing.files
    )
    ledger.entries += [
        replace(note, stage=ledger.stage) for note in listing.notes.entries
    ]
    for fault in listing.faults:
        writer.reject(
            fault.utterance, fault.reason, file=fault.file, remedy=fault.remedy
        )
    writer.add_recordings(jobs, threads=threads, total=len(listing.files))
    writer.add_utterances(_supervisions(listing, writer), total=len(listing.parts))
    writer.finish(max_skipped_fraction=max_skipped_fraction)


def _supervisions(
    listing: Listing, writer: CorpusWriter
) -> Iterator[SupervisionSegment]:
    """Yield the utterances, sorted by id."""
    for part in listing.parts:
        duration = 0.0
        if part.end is not None:
            duration = round(part.end - part.start, ndigits=8)
        elif part.recording_id in writer.recordings:  # else the writer rejects it
            duration = writer.recordings[part.recording_id].duration
        yield SupervisionSegment(
            id=part.id,
            recording_id=part.recording_id,
            start=part.start,
            duration=duration,
            channel=0,
            text=part.text,
            speaker=part.speaker,
        )


def file_id(path: Path) -> str:
    """Return the id of a recording: its path without suffix, `-` between folders.

    Blanks become `_`, since ids stand in Kaldi's files, and letters composed ones.
    """
    name = "-".join(path.with_suffix("").parts)
    return plain_id(unicodedata.normalize("NFC", name))
