"""Audio files as recognizers take them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from latflow.corpus.audio import AudioReader, check_rate
from latflow.corpus.folder_files import AUDIO_SUFFIXES, is_audio_name
from latflow.corpus.manifests import read_recordings
from latflow.errors import UserError


@dataclass(frozen=True)
class Recording:
    """A file to transcribe.

    Attributes:
        path: the file.
        name: that its outputs have, with `/` between folders.
        raw_rate: see `AudioReader`.
    """

    path: Path
    name: str
    raw_rate: int | None = None


def find_recordings(inputs: Sequence[str | Path]) -> list[Recording]:
    """Return the files that are named, and all audio files below folders, sorted.

    A name is the file's without its suffix, below a folder with the folders on the way;
    where two would be the same, all names are paths from the folder that holds all of
    them; then with their suffixes.

    Raises:
        UserError: a folder holds no audio.
    """
    found: dict[Path, Path] = {}  # file -> folder that its name begins at
    for given in map(Path, inputs):
        files = _audio_below(given) if given.is_dir() else [given]
        for path in files:
            folder = given if given.is_dir() else given.parent
            found.setdefault(Path(os.path.abspath(path)), Path(os.path.abspath(folder)))
    top = Path(os.path.commonpath([path.parent for path in found])) if found else Path()
    long = [path.relative_to(top) for path in found]
    choices = (
        [path.relative_to(begin).with_suffix("") for path, begin in found.items()],
        [path.with_suffix("") for path in long],
    )
    names = next((paths for paths in choices if len({*paths}) == len(paths)), long)
    return [
        Recording(path, name.as_posix())
        for path, name in zip(found, names, strict=True)
    ]


def listed_recordings(manifest: Path) -> list[Recording]:
    """Return the recordings of a set, by their ids.

    Args:
        manifest: its `recordings.jsonl.gz`.

    Raises:
        UserError: one of them is not one file.
    """
    found = []
    for recording in read_recordings(manifest):
        source = recording.sources[0]
        if source.type != "file" or len(recording.sources) > 1:
            raise UserError(
                "a recording that is not one file",
                file=manifest,
                utterance=recording.id,
                remedy="transcribe a folder of files",
            )
        found.append(Recording(Path(str(source.source)), recording.id))
    return found


def _audio_below(folder: Path) -> list[Path]:
    """Return the audio files below a folder, sorted."""
    found = sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if is_audio_name(name)
    )
    if not found:
        raise UserError(
            "no audio file in this folder",
            file=folder,
            remedy="name the files themselves if they have other suffixes than "
            + ", ".join(AUDIO_SUFFIXES),
        )
    return found


@contextmanager
def received(raw_rate: int | None = None) -> Iterator[Recording]:
    """Keep what comes from standard input in a file, which can be sought in.

    Args:
        raw_rate: see `AudioReader`.
    """
    with tempfile.NamedTemporaryFile(prefix="latflow-") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
        kept.flush()
        yield Recording(Path(kept.name), "stdin", raw_rate)


def open_recording(
    source: str | Path | BinaryIO,
    *,
    raw_rate: int | None = None,
    name: str | None = None,
) -> AudioReader:
    """Open an audio file; see `AudioReader`.

    Raises:
        BadAudio: see `AudioReader`; or nobody has such a sample rate.
    """
    audio = AudioReader(source, raw_rate=raw_rate, name=name)
    try:
        check_rate(audio.sample_rate, str(name or source))
    except BaseException:
        audio.close()
        raise
    return audio
