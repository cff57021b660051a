"""WAV files whose headers do not say how long they are.

Who writes a WAV file to a pipe, or is stopped while recording, leaves a length of
zero, of the last time it was noted, or the largest number that fits. The samples then
continue to the end of the file, or to the chunks that stand there (LIST, id3 and the
like), which are not samples. `mend_of_wav` finds where they end. A header that promises
more than is there is left unchanged: that file was cut short.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from latflow.corpus.mended_file import Mend

# Lengths that programs write when they do not know the length (pipes).
UNKNOWN_LENGTHS = range(0x7FFF0000, 0x1_0000_0000)
_LARGEST = 0xFFFFFFFF
_MAX_CHUNKS = 1000  # before the samples
_TAIL = 1 << 22  # bytes at the end of a file that chunks are looked for in
_BLOCK = 1 << 20
_ID3V1 = 128  # bytes, at the very end
# Chunks that stand behind samples, whatever their length says, in lower case.
_TRAILERS = (
    *(b"list", b"id3 ", b"bext", b"cue ", b"fact", b"junk", b"pad ", b"fllr"),
    *(b"_pmx", b"ixml", b"axml", b"smpl", b"inst", b"acid", b"afsp", b"cart"),
    *(b"peak", b"levl", b"minf", b"elm1", b"regn", b"umid", b"md5 ", b"chna"),
    *(b"plst", b"note", b"labl", b"disp", b"strc", b"lgwv", b"resu", b"mext"),
)
# What is not a chunk of a WAV file: tags, and another file.
_FOREIGN = (b"id3", b"tag", b"apetagex", b"lyricsbegin", b"riff", b"rf64", b"bw64")
_CHUNK = re.compile(b"|".join(re.escape(name) for name in _TRAILERS), re.IGNORECASE)
_NAME = re.compile(rb"[ -~]{4}")


@dataclass(frozen=True)
class _Samples:
    """The place of the samples: bytes that precede them, and their length.

    Attributes:
        start: of the samples, bytes from the beginning of the file.
        claimed: their bytes as the header says; 0 for unknown.
        block: bytes of a sample of all channels.
        wide: where the chunk of 64-bit lengths stands; None without one.
    """

    start: int
    claimed: int
    block: int
    wide: int | None


def mend_of_wav(stream: BinaryIO) -> Mend | None:
    """Return how a file is to be read; None where libsndfile reads it right.

    Args:
        stream: can be sought in; where it stands afterwards is not defined.
    """
    stream.seek(0)
    head = stream.read(12)
    if head[:4] not in (b"RIFF", b"RF64", b"BW64") or head[8:] != b"WAVE":
        return None
    size = stream.seek(0, os.SEEK_END)
    samples = _samples(stream, size, is_wide=head[:4] != b"RIFF")
    if samples is None:
        return None
    end = _end(stream, samples, size)
    if end is None:
        return None
    length = (end - samples.start) // samples.block * samples.block
    stream.seek(0)
    header = bytearray(stream.read(samples.start))
    header[:8] = struct.pack("<4sI", b"RIFF", min(samples.start + length, _LARGEST))
    header[-4:] = struct.pack("<I", min(length, _LARGEST))
    if samples.wide is not None:
        header[samples.wide : samples.wide + 4] = b"JUNK"
    is_wrong = samples.claimed not in UNKNOWN_LENGTHS
    end = samples.start + length
    return Mend(bytes(header), samples.start, end, is_wrong=is_wrong)


def _samples(stream: BinaryIO, size: int, *, is_wide: bool) -> _Samples | None:
    """Find the samples; None if there is no such chunk before the end."""
    at, block, wide, wide_length = 12, 1, None, 0
    for _ in range(_MAX_CHUNKS):
        stream.seek(at)
        name, length = _chunk(stream.read(8))
        if name == b"data":
            if is_wide and length == _LARGEST:
                length = wide_length if wide_length < 1 << 63 else 0
            return _Samples(at + 8, length, block, wide)
        if name == b"fmt " and len(stated := stream.read(14)) == 14:
            block = max(1, int.from_bytes(stated[12:], "little"))
        if name == b"ds64" and len(stated := stream.read(16)) == 16:
            wide, wide_length = at, int.from_bytes(stated[8:], "little")
        at += 8 + length + length % 2
        if at + 8 > size:
            break
    return None


def _end(stream: BinaryIO, samples: _Samples, size: int) -> int | None:
    """Return where the samples end; None where libsndfile finds it by itself."""
    present, claimed = size - samples.start, samples.claimed
    if present <= 0 or claimed == present:
        return None
    if claimed > present and claimed not in UNKNOWN_LENGTHS:
        return None  # cut short
    is_unknown = claimed == 0 or claimed > present
    begin = samples.start if is_unknown else samples.start + claimed
    if claimed <= present and _is_trailer(stream, begin, size, samples):
        return None
    end = _trailer(stream, begin, size)
    return None if end == size and claimed > present else end


def _is_trailer(stream: BinaryIO, at: int, size: int, samples: _Samples) -> bool:
    """Return whether what follows the samples that the header knows is not a sample."""
    if size - at < max(8, samples.block):
        return samples.claimed > 0
    starts = [at, at + 1] if samples.claimed % 2 else [at]
    if any(_goes_to(stream, start, size) for start in starts):
        return True
    if samples.claimed == 0:
        return False
    stream.seek(at)
    first = stream.read(12).lower()
    known = (*_TRAILERS, *_FOREIGN)
    if first.startswith(known) or first[samples.claimed % 2 :].startswith(known):
        return True
    return not any(any(block) for block in _blocks(stream, at))


def _blocks(stream: BinaryIO, at: int) -> Iterator[bytes]:
    """Yield the bytes of a file from a place on."""
    stream.seek(at)
    while block := stream.read(_BLOCK):
        yield block


def _trailer(stream: BinaryIO, begin: int, size: int) -> int:
    """Return where chunks or tags begin that end the file; its end where none do."""
    start = max(begin, size - _TAIL)
    stream.seek(start)
    tail = stream.read()
    for found in _CHUNK.finditer(tail):
        if _goes_to(stream, start + found.start(), size):
            return start + found.start()
    if tail[-_ID3V1:].startswith(b"TAG") and len(tail) >= _ID3V1:
        return size - _ID3V1
    return size


def _goes_to(stream: BinaryIO, at: int, size: int) -> bool:
    """Return whether chunks follow each other from a place to the end of the file."""
    if at + 8 > size:
        return False
    while at + 8 <= size:
        stream.seek(at)
        name, length = _chunk(stream.read(8))
        if not _NAME.fullmatch(name):
            return False
        at += 8 + length + length % 2
    return at in (size, size + 1)  # the last one may lack its byte of padding


def _chunk(head: bytes) -> tuple[bytes, int]:
    """Return the name and the length of a chunk."""
    return head[:4], int.from_bytes(head[4:8], "little")
