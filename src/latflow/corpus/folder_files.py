"""The files of a folder of audio, by their names: nothing is opened, no audio read.

Kept apart from `latflow.corpus.folder`, so that a run is planned without importing the
libraries that read audio.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from latflow.corpus.options import FolderSource

# What is taken for audio in folders; files that are named are always tried.
AUDIO_SUFFIXES = (
    *("3g2", "3ga", "3gp", "3gpp", "aac", "aif", "aifc", "aiff", "amr", "au", "avi"),
    *("awb", "bwf", "caf", "flac", "m4a", "m4b", "m4r", "m4v", "mka", "mkv", "mov"),
    *("mp2", "mp3", "mp4", "mpga", "oga", "ogg", "ogv", "opus", "qta", "rf64", "snd"),
    *("spx", "sph", "voc", "w64", "wav", "weba", "webm", "wma", "wv"),
)
# Transcripts with times.
TIMED_SUFFIXES = ("TextGrid", "srt", "vtt")


def is_audio_name(name: str) -> bool:
    """Return whether a file of a folder is taken for audio, by its name."""
    suffix = Path(name).suffix.lower().removeprefix(".")
    return suffix in AUDIO_SUFFIXES and not name.startswith(".")


def list_files(
    source: FolderSource, content: Callable[[Path, os.stat_result], str]
) -> dict[str, str]:
    """Return the audio and the transcripts of a folder, and what each is known by.

    Transcripts are known by their contents, audio, too much to read, by size and time.

    Args:
        source: of the folder.
        content: gives a digest of a file's content.
    """
    found = {}
    top = Path(os.path.abspath(source.path))
    for folder, names in folders(top):
        for name in names:
            path = folder / name
            is_text = transcript_suffix(name, source) is not None
            if not (is_text or is_audio_name(name)):
                continue
            mark = "missing"  # a link to nothing, or a file that may not be read
            with suppress(OSError):
                facts = path.stat()
                mark = f"{facts.st_size} {facts.st_mtime_ns}"
                if is_text:
                    mark = content(path, facts)
            found[str(path.relative_to(top))] = mark
    return found


def digest_of_files(listed: Mapping[str, str]) -> str:
    """Return a digest that changes when a file of `list_files` does."""
    digest = hashlib.sha256()
    for name, mark in listed.items():
        digest.update(f"{name} {mark}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders with the names of their files, sorted; hidden ones are left out.

    So are links to a folder above, in which all would be found again and again.
    """
    for parent, below, names in os.walk(top, followlinks=True):
        here = Path(parent).resolve()
        below[:] = sorted(
            name
            for name in below
            if not name.startswith(".")
            and not here.is_relative_to(Path(parent, name).resolve())
        )
        yield Path(parent), sorted(name for name in names if not name.startswith("."))


def transcript_suffix(name: str, source: FolderSource) -> str | None:
    """Return which of the transcripts' suffixes a name has; None for another."""
    suffix = Path(name).suffix.removeprefix(".").lower()
    known = {known.lower(): known for known in source.transcript_suffixes}
    return known.get(suffix)
