"""Memory and messages that a scorer process shares with the workers of a server.

A worker keeps its chunks in memory without a name, which goes with the processes that
have it open, and sends the scorer where they lie; the scorer writes the scores behind
each, and answers that they are there:

    worker -> scorer    hello: model, with the channel and the memory (`Door`)
    worker -> scorer    requests: records of `Request`, any number at a time
    scorer -> worker    answers: records of `Answer`

A chunk lies in one of the memory's slots; one that is too large for a slot, a whole
segment, in pages behind them, which are given back when its scores have come.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from latflow.errors import UserError

#: Whether the system has memory without a name (Linux).
CAN_SHARE = hasattr(os, "memfd_create")
_ALIGNMENT = 64
_RECEIVED = 1 << 16  # bytes that are taken of a channel at a time
_Record = TypeVar("_Record", bound=tuple[int, ...])
#: A client waits for the end of its session; none does; a scorer may have died of it.
URGENT, USUAL, ALONE = range(3)


class Request(NamedTuple):
    """A chunk to be scored.

    Attributes:
        place: in the memory, bytes; the scores go behind its frames.
        number: of the request, on its channel.
        length: frames with those around them.
        dim: features of a frame.
        left: see `Chunk`.
        right: see `Chunk`.
        line: that it waits in: `URGENT`, `USUAL`, or `ALONE`.
        stream: number of the chunk's stream, 1 or more; 0: it has none.
        begin: see `Chunk`.
        is_last: likewise.
    """

    place: int
    number: int
    length: int
    dim: int
    left: int
    right: int
    line: int
    stream: int
    begin: int
    is_last: int


class Answer(NamedTuple):
    """Tell what has become of a chunk.

    Attributes:
        number: of the request.
        fault: bytes of the message that stands for the scores; 0: there are scores.
    """

    number: int
    fault: int


_FORMATS = {Request: struct.Struct("<QIIIIIIQII"), Answer: struct.Struct("<II")}


def packed(records: Sequence[Request] | Sequence[Answer]) -> bytes:
    """Return a message of records."""
    form = _FORMATS[type(records[0])]
    return b"".join(form.pack(*record) for record in records)


class Records(Generic[_Record]):
    """Takes records from a channel, which may cut them anywhere.

    Args:
        kind: of the records.
        channel: they come by.
    """

    def __init__(self, kind: type[_Record], channel: socket.socket) -> None:
        self._kind, self._channel = kind, channel
        self._form = _FORMATS[kind]
        self._rest = b""

    def take(self) -> list[_Record] | None:
        """Wait for records and take them; None where the other side has gone."""
        try:
            got = self._channel.recv(_RECEIVED)
        except OSError:
            return None
        if not got:
            return None
        data = self._rest + got
        whole = len(data) - len(data) % self._form.size
        self._rest = data[whole:]
        return [self._kind(*r) for r in self._form.iter_unpack(data[:whole])]


def _aligned(size: int, to: int = _ALIGNMENT) -> int:
    """Round a number of bytes up."""
    return -(-size // to) * to


class SharedView:
    """A part of a memory, for one chunk and its scores, and a mark before them.

    Args:
        memory: the mapped bytes.
        begin: of the part in them.
        size: of the chunk's frames, bytes.
    """

    def __init__(self, memory: mmap.mmap, begin: int, size: int) -> None:
        self._memory, self._mark = memory, begin
        self._begin = begin + _ALIGNMENT
        self._behind = self._begin + _aligned(size)

    @property
    def is_begun(self) -> bool:
        """Whether the scorer has begun with the chunk, and has died if it stays so."""
        return self._memory[self._mark] != 0

    @is_begun.setter
    def is_begun(self, value: bool) -> None:
        self._memory[self._mark] = int(value)

    def frames(self, length: int, dim: int) -> np.ndarray:
        """Return the chunk's frames, float32[length, dim]."""
        return self._array(self._begin, length, dim)

    def scores(self, rows: int, num_pdfs: int) -> np.ndarray:
        """Return the scores, float32[rows, num_pdfs]."""
        return self._array(self._behind, rows, num_pdfs)

    def _array(self, begin: int, rows: int, columns: int) -> np.ndarray:
        """Return an array that lies in the memory."""
        flat = np.frombuffer(self._memory, np.float32, rows * columns, begin)
        return flat.reshape(rows, columns)

    def write_fault(self, text: str, room: int) -> int:
        """Write a message instead of scores of a size; return its length, above 0."""
        data = text.encode()[: max(1, room)] or b"?"
        self._memory[self._behind : self._behind + len(data)] = data
        return len(data)

    def read_fault(self, length: int) -> str:
        """Return the message that stands for the scores."""
        data = self._memory[self._behind : self._behind + length]
        return data.decode(errors="replace")


def bytes_of(length: int, dim: int, rows: int, num_pdfs: int) -> int:
    """Return the bytes of a chunk with its scores."""
    scores = _aligned(4 * rows * num_pdfs)
    return _ALIGNMENT + _aligned(4 * length * dim) + scores


class Memory:
    """Memory of a worker; numbers its places by bytes.

    Attributes:
        file: descriptor, for the scorer to map.
        slots: number of chunks that there is room for.
        slot_bytes: of each, a multiple of a page; larger chunks lie behind the slots.

    Args:
        slots: see above.
        slot_bytes: of each, rounded up.

    Raises:
        UserError: there is no such memory to be had.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = _aligned(slot_bytes, mmap.PAGESIZE)
        self._size = slots * self.slot_bytes
        try:
            self.file = os.memfd_create("latflow-chunks")
            os.ftruncate(self.file, self._size)
            self._slots = mmap.mmap(self.file, self._size)
        except OSError as error:
            raise UserError(
                f"no memory to share {slots} chunks in ({self._size >> 20} MiB): "
                f"{error.strerror}",
                remedy="raise the limits of files and memory (ulimit -a), or serve "
                "with --scorer off",
            ) from None
        self._free = list(range(slots))
        self._large: dict[int, tuple[int, mmap.mmap]] = {}  # with their slots

    @property
    def num_free(self) -> int:
        """Number of slots that are free."""
        return len(self._free)

    def take(self, size: int) -> int:
        """Return a place of a size for one chunk; there must be a free slot."""
        slot = self._free.pop()
        if size <= self.slot_bytes:
            return slot * self.slot_bytes
        place, whole = self._end(), _aligned(size, mmap.PAGESIZE)
        try:
            os.ftruncate(self.file, place + whole)
            self._large[place] = slot, mmap.mmap(self.file, whole, offset=place)
        except OSError as error:
            self._free.append(slot)
            raise UserError(
                f"no memory for a segment of {whole >> 20} MiB: {error.strerror}",
                remedy="raise the limits of files and memory (ulimit -a)",
            ) from None
        return place

    def _end(self) -> int:
        """Return the end of all that is taken, and of the slots."""
        ends = (place + len(pages) for place, (_, pages) in self._large.items())
        return max([self._size, *ends])

    def view(self, place: int, size: int) -> SharedView:
        """Return a place that was taken, for frames of a size."""
        if place in self._large:
            return SharedView(self._large[place][1], 0, size)
        return SharedView(self._slots, place, size)

    def give_back(self, place: int) -> None:
        """Free a place."""
        if place < self._size:
            self._free.append(place // self.slot_bytes)
            return
        slot, _ = self._large.pop(place)
        os.ftruncate(self.file, self._end())
        self._free.append(slot)

    def close(self) -> None:
        """Let the memory go, as far as no array is left in it."""
        os.close(self.file)


class Mapped:
    """A worker's memory as the scorer sees it.

    Args:
        file: descriptor; closed here.
        size: of the slots together.
    """

    def __init__(self, file: int, size: int) -> None:
        self._file, self._size = file, size
        self._slots = mmap.mmap(file, size)

    def view(self, request: Request, num_scores: int) -> SharedView:
        """Return the place of a request whose scores are this many."""
        size = 4 * request.length * request.dim
        if request.place < self._size:
            return SharedView(self._slots, request.place, size)
        whole = bytes_of(request.length, request.dim, 1, num_scores)
        return SharedView(mmap.mmap(self._file, whole, offset=request.place), 0, size)

    def close(self) -> None:
        """Let the memory go."""
        os.close(self._file)


class Hello(NamedTuple):
    """A worker's first words.

    Attributes:
        model: number of the model.
        size: bytes of the memory's slots together.
        channel: for requests and answers.
        file: descriptor of the memory.
    """

    model: int
    size: int
    channel: socket.socket
    file: int


class Door:
    """Where workers come in: a pair of sockets that outlives every scorer.

    What is sent to a scorer that has died, or does not run yet, reaches the next.
    """

    _FORM = struct.Struct("<IQ")

    def __init__(self) -> None:
        self.inside, self.outside = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )

    def close(self) -> None:
        """Close both ends here."""
        self.inside.close()
        self.outside.close()

    @classmethod
    def enter(cls, outside: socket.socket, model: int, memory: Memory) -> socket.socket:
        """Open a channel to the scorer, for chunks of a model."""
        ours, theirs = socket.socketpair()
        size = memory.slots * memory.slot_bytes
        with theirs:
            files = [theirs.fileno(), memory.file]
            socket.send_fds(outside, [cls._FORM.pack(model, size)], files)
        return ours

    @classmethod
    def accept(cls, inside: socket.socket) -> Hello:
        """Receive the first message of a worker."""
        data, files, _, _ = socket.recv_fds(inside, cls._FORM.size, 2)
        model, size = cls._FORM.unpack(data)
        return Hello(model, size, socket.socket(fileno=files[0]), files[1])


def hang_up(channel: socket.socket) -> None:
    """End a channel for both sides; who waits at it wakes up."""
    with suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)
