"""Audio files as recognizers take them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from latflow.corpus.audio import AudioReader, check_rate


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
