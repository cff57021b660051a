"""The program that decodes an audio or video file by FFmpeg's libraries (PyAV).

`latflow.corpus.media` starts it, in its own process: what a file does to FFmpeg ends
with it. It imports nothing of latflow. The file is its standard input; arguments are
the folder of PyAV and FFmpeg's name of the format, so that no other format, no playlist
and no other file or address is ever opened. To its output it writes records, each one
byte of a kind, four of a length (little-endian), and as many of content:

    H   {"rate", "channels"} as JSON, first
    S   samples, float32, of all channels in turn
    N   a note on the file, UTF-8
    E   why it cannot be read, UTF-8; the last record
    D   nothing; the last record of a file that was read to its end
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain
from typing import Any

_MEMORY = 1 << 30  # bytes of addresses that decoding may take
_PIECE = 1 << 16  # samples of a record, at most
_SMALLEST_GAP = 0.1  # seconds without packets that are filled with silence
_LARGEST_GAPS = 3600.0  # seconds, all together
_SLACK = 0.25  # seconds, or 2 %, that a file may have less than its header says
# Formats whose packets have times, and those that lose no packet unless damaged.
_HAS_TIMES = ("mov", "matroska", "ogg", "flac")
_HAS_NO_GAPS = ("flac",)
_MOST_STREAMS = 64


class _UnusableError(Exception):
    """Says why a file cannot be read."""


class _Input:
    """Standard input, without a name that FFmpeg could open."""

    name = ""

    def __init__(self) -> None:
        self._at = 0
        self._size = os.fstat(0).st_size

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        data = os.pread(0, size, self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        origin = (0, self._at, self._size)[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        """Return where it stands."""
        return self._at


def _limit(kind: int, most: int) -> None:
    """Limit what this process may take, where the system can (macOS: no addresses)."""
    with suppress(OSError, ValueError):
        resource.setrlimit(kind, (most, most))


def main() -> None:
    """Decode the file; all that goes wrong with it is a record."""
    folder, form = sys.argv[1:]
    _limit(resource.RLIMIT_AS, _MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    sys.path.append(folder)
    av: Any = import_module("av")
    av.logging.set_level(None)
    try:
        _decode(av, form)
    except _UnusableError as error:
        _write(b"E", str(error).encode())
    except (av.FFmpegError, ValueError, UnicodeError) as error:
        what = getattr(error, "strerror", None) or str(error)
        _write(b"E", f"is corrupt ({what})".encode())
    except MemoryError:
        _write(b"E", b"is corrupt (takes too much memory)")
    else:
        _write(b"D", b"")


def _write(kind: bytes, content: bytes) -> None:
    """Write a record."""
    sys.stdout.buffer.write(kind + struct.pack("<I", len(content)) + content)
    sys.stdout.buffer.flush()


def _decode(av: Any, form: str) -> None:
    """Write the records of a file."""
    known = [name for name in av.codecs_available if _decodes_audio(av, name)]
    options = {
        "codec_whitelist": ",".join(known),
        "format_whitelist": form,
        "protocol_whitelist": "none",
        "max_streams": str(_MOST_STREAMS),
    }
    with av.open(
        _Input(),
        format=form.partition(",")[0],
        container_options=options,
        metadata_errors="replace",
        io_open=_refuse,
    ) as container:
        stream = _chosen(container.streams.audio)
        if stream.codec_context.name == "flac":  # its frames have check sums
            stream.codec_context.options = {"err_detect": "crccheck+explode"}
        _Track(av, container, stream, form).decode()


def _chosen(streams: Any) -> Any:
    """Return the first stream of audio that can be decoded."""
    if not streams:
        raise _UnusableError("holds no audio")
    known = [stream for stream in streams if stream.codec_context is not None]
    if not known:
        raise _UnusableError("holds audio in a coding that is not read here")
    if len(streams) > 1:
        which = "" if known[0] is streams[0] else " of a known coding"
        _write(
            b"N", f"{len(streams)} streams of audio: the first{which} is read".encode()
        )
    return known[0]


def _refuse(url: str, *_: Any) -> Any:
    """Open none of the files and addresses that a file names."""
    raise _UnusableError(f"has parts outside itself ({url[:80]})")


def _decodes_audio(av: Any, name: str) -> bool:
    """Return whether a codec decodes audio."""
    try:
        return av.Codec(name, "r").type == "audio"
    except ValueError:  # only encodes
        return False


class _Track:
    """A stream of audio that is decoded."""

    def __init__(self, av: Any, container: Any, stream: Any, form: str) -> None:
        self._av, self._container, self._stream = av, container, stream
        self._has_times = form.startswith(_HAS_TIMES)
        self._has_no_gaps = form in _HAS_NO_GAPS
        self._resampler: Any = None
        self._before: Any = None  # form of the frames before
        self._written = 0
        self._begin: float | None = None
        self._filled = 0.0

    def decode(self) -> None:
        """Write the header, the samples and the notes."""
        frames = self._frames()
        first = next(frames, None)
        if first is None:
            raise _UnusableError("holds no samples")
        self._rate, self._layout = first.sample_rate, first.layout.name
        self._channels = first.layout.nb_channels
        form = {"rate": self._rate, "channels": self._channels}
        _write(b"H", json.dumps(form).encode())
        for frame in chain([first], frames):
            self._fill(frame)
            self._samples(self._converted(frame))
        self._samples(self._converted(None))
        self._check_length()
        if self._filled:
            text = f"{self._filled:.1f} s without packets: filled with silence"
            _write(b"N", text.encode())

    def _frames(self) -> Iterator[Any]:
        """Yield the decoded frames."""
        for packet in self._container.demux(self._stream):
            yield from packet.decode()

    def _converted(self, frame: Any) -> list[Any]:
        """Return a frame as floats; its rate and its channels are the first one's."""
        found = []
        form = frame and (frame.format.name, frame.layout.name, frame.sample_rate)
        if self._resampler is not None and form != self._before:
            found += self._resampler.resample(None)
            self._resampler = None
        if frame is None:
            return found
        if self._resampler is None:
            self._resampler = self._av.AudioResampler("flt", self._layout, self._rate)
            self._before = form
        frame.pts = None  # the resampler makes no samples of gaps
        return found + self._resampler.resample(frame)

    def _samples(self, frames: list[Any]) -> None:
        for frame in frames:
            data = memoryview(frame.planes[0])[: 4 * self._channels * frame.samples]
            self._written += frame.samples
            step = 4 * self._channels * _PIECE
            for at in range(0, len(data), step):
                _write(b"S", bytes(data[at : at + step]))

    def _fill(self, frame: Any) -> None:
        """Write silence for the time before a frame that has no packets."""
        if not self._has_times or frame.pts is None or frame.time_base is None:
            return
        time = float(frame.pts * frame.time_base)
        if self._begin is None:
            self._begin = time
        gap = time - self._begin - self._written / self._rate
        if self._has_no_gaps and gap * self._rate >= 1:
            raise _UnusableError(f"is corrupt (a frame at {time - gap:.2f} s is lost)")
        if gap < _SMALLEST_GAP:
            return
        self._filled += gap
        if self._filled > _LARGEST_GAPS:
            text = f"is corrupt ({self._filled:.0f} s of it have no packets)"
            raise _UnusableError(text)
        left = round(gap * self._rate)
        self._written += left
        while left:
            number = min(left, _PIECE)
            _write(b"S", bytes(4 * self._channels * number))
            left -= number

    def _check_length(self) -> None:
        """Refuse a file that holds less than its header says."""
        claimed = self._claimed() if self._has_times else 0.0
        found = self._written / self._rate
        if found < claimed - max(_SLACK, 0.02 * claimed):
            raise _UnusableError(f"is cut short: {found:.2f} of {claimed:.2f} s decode")

    def _claimed(self) -> float:
        """Return the duration in the header, seconds; 0 if it has none."""
        stream, container = self._stream, self._container
        if stream.duration:
            return float(stream.duration * stream.time_base)
        is_alone = len(container.streams) == 1
        return (container.duration or 0) / 1e6 if is_alone else 0.0


if __name__ == "__main__":
    main()
