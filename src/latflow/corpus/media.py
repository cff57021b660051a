"""Audio in files that libsndfile does not know: m4a, webm, and the like.

FFmpeg's libraries decode them, by PyAV, in their own process
(`latflow.corpus.media_decoder`), which has the open file and no name of any. Its memory
is limited, and so is the time that it may take for the next samples. The format is
recognized from the first bytes of the file, never from its name; playlists are not
supported.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import numpy as np
from lhotse.audio import AudioLoadingError

from latflow.corpus import media_decoder

_PATIENCE = 60.0  # seconds, for the next record
_LONGEST = 1 << 24  # bytes of a record
_BLOCK = 1 << 16  # samples
_HEAD = 64  # bytes that show the format
# FFmpeg's name of a form, by the bytes that stand at a place of the file.
_FORMS: tuple[tuple[int, tuple[bytes, ...], str], ...] = (
    (4, (b"ftyp", b"moov", b"mdat", b"wide"), "mov,mp4,m4a,3gp,3g2,mj2"),
    (0, (b"\x1a\x45\xdf\xa3",), "matroska,webm"),
    (0, (b"#!AMR",), "amr"),
    (0, (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",), "asf"),
    # In the first page. libsndfile knows Opus and Vorbis, but for repeated headers.
    (28, (b"Speex   ", b"\x7fFLAC", b"\x80theora", b"fishead\0"), "ogg"),
    (28, (b"OpusHead", b"\x01vorbis"), "ogg"),
    (0, (b"fLaC",), "flac"),
    (0, (b"caff",), "caf"),
    (0, (b"FLV\x01",), "flv"),
    (0, (b"\x00\x00\x01\xba",), "mpeg"),
    (0, (b"MAC ",), "ape"),
    (0, (b"wvpk",), "wv"),
    (0, (b"\x0b\x77",), "ac3"),
    (8, (b"WAVE",), "wav"),
    (8, (b"AVI ",), "avi"),
    (0, (b"\xff\xf1", b"\xff\xf9", b"\xff\xf0", b"\xff\xf8"), "aac"),
)
_REMEDY = "restore the file; or convert it to FLAC or WAV"


class MediaError(AudioLoadingError):
    """A file that cannot be read.

    Attributes:
        what: continues from the file's name.
        remedy: for the user.
    """

    def __init__(self, what: str, remedy: str = _REMEDY) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def media_form(stream: BinaryIO) -> str | None:
    """Return FFmpeg's name of a file's format; None if it is unknown."""
    stream.seek(0)
    head = stream.read(_HEAD)
    if head.startswith(b"ID3") and len(head) >= 10:  # a tag before the frames
        size = sum(byte << 7 * (3 - i) for i, byte in enumerate(head[6:10]))
        stream.seek(10 + size)
        head = stream.read(_HEAD)
    for place, starts, name in _FORMS:
        if head[place:].startswith(starts):
            return name
    return _transport_stream(stream)


def _transport_stream(stream: BinaryIO) -> str | None:
    """Return the form of MPEG's transport stream, whose packets begin alike."""
    stream.seek(0)
    head = stream.read(4 * 188 + 1)
    return "mpegts" if len(head) > 188 and {*head[::188]} == {0x47} else None


class MediaFile:
    """A file that is decoded, to be read from its beginning to its end.

    Args:
        source: a path, or a file that can be sought in.

    Attributes:
        samplerate: samples per second.
        channels: how many.
        notes: on the file, as far as it is read.

    Raises:
        MediaError: nobody knows its form, PyAV is not there, or it is damaged.
    """

    def __init__(self, source: str | Path | BinaryIO) -> None:
        self.notes: tuple[str, ...] = ()
        self._rest = np.zeros((0, 1), np.float32)
        self._is_done = False
        with _open_file(source) as stream:
            form = media_form(stream)
            if form is None and not stream.seek(0, os.SEEK_END):
                raise MediaError("is empty (0 bytes)", "record, copy or send it again")
            if form is None:
                raise MediaError("is in no format that is read here")
            self._process = _start(form, stream)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Read the header."""
        while True:
            kind, content = self._record()
            if kind == b"H":
                form = json.loads(content)
                self.samplerate, self.channels = int(form["rate"]), form["channels"]
                self._rest = np.zeros((0, self.channels), np.float32)
                return
            self._take(kind, content)

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the decoder."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def read(self, frames: int = -1, **_: Any) -> np.ndarray:
        """Return the next samples, float32 [n, C]; fewer at the end of the file.

        Args:
            frames: how many; -1 for all.

        Raises:
            MediaError: it is damaged or cut short.
        """
        pieces, number = [self._rest], len(self._rest)
        while not self._is_done and (frames < 0 or number < frames):
            kind, content = self._record()
            if kind == b"S":
                pieces.append(np.frombuffer(content, "<f4").reshape(-1, self.channels))
                number += len(pieces[-1])
            else:
                self._take(kind, content)
        found = np.concatenate(pieces)
        cut = len(found) if frames < 0 else frames
        self._rest = found[cut:]
        return found[:cut]

    def skip(self, frames: int | None = None) -> int:
        """Leave samples out, or all of them; return how many there were."""
        left = sys.maxsize if frames is None else frames
        skipped = 0
        while skipped < left and (n := len(self.read(min(left - skipped, _BLOCK)))):
            skipped += n
        return skipped

    def _take(self, kind: bytes, content: bytes) -> None:
        """Take a record that is not audio."""
        if kind == b"E":
            raise MediaError(content.decode(errors="replace"))
        if kind == b"N":
            self.notes += (content.decode(errors="replace"),)
        self._is_done = kind == b"D"

    def _record(self) -> tuple[bytes, bytes]:
        kind, length = struct.unpack("<cI", self._bytes(5))
        if length > _LONGEST:
            raise MediaError("is corrupt")
        return kind, self._bytes(length)

    def _bytes(self, number: int) -> bytes:
        """Return bytes of the decoder, as soon as they come."""
        assert self._process.stdout is not None
        source, end, data = self._process.stdout.fileno(), time.monotonic(), b""
        end += _PATIENCE
        while len(data) < number:
            ready, _, _ = select.select(
                [source], [], [], max(0, end - time.monotonic())
            )
            if not ready:
                raise MediaError(f"is corrupt (no samples within {_PATIENCE:g} s)")
            part = os.read(source, number - len(data))
            if not part:
                raise MediaError("is corrupt (its decoder failed)")
            data += part
        return data


def _start(form: str, stream: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the decoder of a file."""
    found = importlib.util.find_spec("av")
    if found is None or found.origin is None:
        kind = form.partition(",")[0]
        remedy = "pip install av (or 'latflow[serve]'), or convert it to FLAC or WAV"
        raise MediaError(f"is in the format {kind}, which PyAV reads", remedy)
    folder = str(Path(found.origin).parent.parent)
    # Isolated, and without what sites run at the start of each Python.
    command = [sys.executable, "-I", "-S", media_decoder.__file__, folder, form]
    return subprocess.Popen(
        command,
        stdin=stream,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        bufsize=0,
    )


def _open_file(source: str | Path | BinaryIO) -> BinaryIO:
    """Return a file of the system that holds a source; to be closed."""
    if isinstance(source, str | Path):
        return open(os.path.abspath(source), "rb")
    source.seek(0)
    try:
        return os.fdopen(os.dup(source.fileno()), "rb")
    except (AttributeError, io.UnsupportedOperation):
        kept = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - the caller
        shutil.copyfileobj(source, kept)
        kept.flush()
        return kept
