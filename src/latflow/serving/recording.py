"""Audio files as recognizers take them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from latflow.corpus.audio import AudioReader, BadAudio

# Sample rates that are taken, Hz.
MIN_RATE, MAX_RATE = 1000, 192000


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
    if MIN_RATE <= audio.sample_rate <= MAX_RATE:
        return audio
    audio.close()
    raise BadAudio(
        f"audio file {name or source} has {audio.sample_rate} samples a second",
        f"resample it to between {MIN_RATE} and {MAX_RATE}",
    )
