"""MP3 files whose headers do not say how long they are, or say too little.

An MP3 file has its length, if anywhere, in a special frame (Xing's or Fraunhofer's).
Without one libsndfile guesses by the first frame's bit rate; with one that is of a part
only (files that were joined), it stops there. Both lose audio where it is longer than
that. `mend_of_mpeg` counts the frames, and puts a header with their number before them.
A header that promises more than is there is left unchanged: that file was cut short.

Frames as in ISO 11172-3 and 13818-3, layer III, and MPEG 2.5.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from math import inf
from typing import BinaryIO, NamedTuple

import soundfile

from latflow.corpus.mended_file import Mend

# By the bits of the version; MPEG 2.5, (reserved), 2 and 1.
_RATES = ((11025, 12000, 8000), (), (22050, 24000, 16000), (44100, 48000, 32000))
_LOW = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)  # kbit/s
_HIGH = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_SIDE = {(True, True): 17, (True, False): 32, (False, True): 9, (False, False): 17}
_BLOCK = 1 << 16
_HEAD = 64  # bytes of a frame that may hold lengths
_FRAUNHOFER = 36  # bytes before Fraunhofer's name
_SLACK = 2  # frames that counts may differ by
_MOST_BYTES = 1 << 12  # of tags, behind the length in a header
_MOST_PLACES = 100_000  # that look like a frame, but are not
_BEGIN = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")
_FOUR = struct.Struct(">I")


class _Frame(NamedTuple):
    """A frame, by its four bytes of header.

    Attributes:
        size: bytes, with the header.
        samples: of a channel.
        rate: samples per second.
        side: where the name of a header of lengths would stand, bytes from its begin.
    """

    size: int
    samples: int
    rate: int
    side: int


def is_mpeg(stream: BinaryIO) -> bool:
    """Return whether a file looks like MP3, by its first bytes."""
    stream.seek(0)
    head = stream.read(3)
    return head == b"ID3" or (head[:1] == b"\xff" and head[1:2] >= b"\xe0")


def mend_of_mpeg(stream: BinaryIO) -> Mend | None:
    """Return how an MP3 file is to be read; None where libsndfile reads it right.

    Args:
        stream: can be sought in; where it stands afterwards is not defined.

    Raises:
        soundfile.LibsndfileError: libsndfile cannot open it.
    """
    begin = _begin(stream)
    stream.seek(begin)
    head = stream.read(_HEAD).ljust(_HEAD, b"\0")
    first = _frame_at(head, 0)
    if first is None:
        return None
    size = stream.seek(0, os.SEEK_END)
    stated, stated_bytes = _stated(head, first)
    if stated is not None and size - begin - stated_bytes <= _MOST_BYTES:
        return None
    begin += 0 if stated is None else first.size
    number = sum(1 for _ in _frames(stream, begin, first.rate))
    believed = _guess(stream) / first.samples if stated is None else stated
    if number == 0 or -_SLACK <= believed - number <= (
        _SLACK if stated is None else inf
    ):
        return None
    return Mend(_header(head, number), begin, size, is_wrong=stated is not None)


def _begin(stream: BinaryIO) -> int:
    """Return where the first frame stands: behind the tags."""
    at = 0
    while True:
        stream.seek(at)
        head = stream.read(10)
        if len(head) < 10 or not head.startswith(b"ID3"):
            return at
        at += 10 + sum(byte << 7 * (3 - i) for i, byte in enumerate(head[6:]))


def _frame_at(data: bytes, at: int) -> _Frame | None:
    """Return the frame that begins at a byte; None if none does."""
    if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] & 0xE6 != 0xE2:
        return None
    version, second, mode = data[at + 1] >> 3 & 3, data[at + 2], data[at + 3] >> 6
    bits, rate = second >> 4, second >> 2 & 3
    if version == 1 or bits in (0, 15) or rate == 3:
        return None
    is_first, hertz = version == 3, _RATES[version][rate]
    samples = 1152 if is_first else 576
    kilobits = (_HIGH if is_first else _LOW)[bits]
    size = samples * 125 * kilobits // hertz + (second >> 1 & 1)
    return _Frame(size, samples, hertz, 4 + _SIDE[is_first, mode == 3])


def _stated(head: bytes, first: _Frame) -> tuple[int | None, int]:
    """Return the number of frames and bytes in a header; None without frames."""
    name = head[first.side : first.side + 4]
    if name in (b"Xing", b"Info"):
        at, flags = first.side + 8, head[first.side + 7]
        frames = _FOUR.unpack_from(head, at)[0] if flags & 1 else None
        at += 4 * (flags & 1)
        return frames, _FOUR.unpack_from(head, at)[0] if flags & 2 else 0
    if head[_FRAUNHOFER : _FRAUNHOFER + 4] == b"VBRI":
        size, frames = struct.unpack_from(">II", head, _FRAUNHOFER + 10)
        return frames, size
    return None, 0


def _guess(stream: BinaryIO) -> int:
    """Return the samples that libsndfile believes to be in a file."""
    stream.seek(0)
    with soundfile.SoundFile(stream) as sound:
        return sound.frames


def _frames(stream: BinaryIO, at: int, rate: int) -> Iterator[_Frame]:
    """Yield the whole frames; what stands between them is passed over."""
    size = stream.seek(0, os.SEEK_END)
    start, data, is_sure, left = at, b"", True, _MOST_PLACES
    while at + 4 <= size and left:
        if not start <= at <= start + len(data) - 4:
            stream.seek(at)
            start, data = at, stream.read(_BLOCK)
        frame = _frame_at(data, at - start)
        if frame is not None and _is_next(stream, at, frame, rate, is_sure=is_sure):
            yield frame
            at, is_sure = at + frame.size, True
            continue
        is_sure, left = False, left - 1
        found = _BEGIN.search(data, at - start + 1)
        at = start + (found.start() if found else max(len(data) - 1, at - start + 1))


def _is_next(
    stream: BinaryIO, at: int, frame: _Frame, rate: int, *, is_sure: bool
) -> bool:
    """Return whether a frame is whole, and of those before it.

    Args:
        stream: the file.
        at: where the frame begins.
        frame: what its header says.
        rate: of the frames before it.
        is_sure: it stands right behind one; else another one has to stand behind it.
    """
    end, size = at + frame.size, stream.seek(0, os.SEEK_END)
    if frame.rate != rate or end > size:
        return False
    if is_sure or end == size:
        return True
    stream.seek(end)
    behind = _frame_at(stream.read(4), 0)
    return behind is not None and behind.rate == rate


def _header(head: bytes, number: int) -> bytes:
    """Return a frame without sound, which holds the number of those that follow."""
    # No check sum; a bit rate whose frames have room for it; nothing else is changed.
    form = bytes((0xFF, head[1] | 1, 0x80 | head[2] & 0x0C, head[3]))
    frame = _frame_at(form, 0)
    assert frame is not None
    stated = form + bytes(frame.side - 4) + b"Xing" + struct.pack(">II", 1, number)
    return stated + bytes(frame.size - len(stated))
