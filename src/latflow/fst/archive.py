r"""Many graphs in one file, read through a memory map: `GraphArchive`.

Training compiles the graph of every utterance once and reads it in every iteration.
An archive holds the records of the graphs as they are in memory, so that
`archive[i]` is a `Graph` of views and takes no copy; a process keeps a few bytes for
each graph.

Layout, little-endian: for each graph its arcs (`ARC`) and states (`STATE`); then the
index, int64[N, 4] (first byte, start state, arcs, states); the keys, UTF-8, each
followed by `\n`; and last N, the first byte of the index, and the eight bytes
`LFGRAPHS`.

Public: `GraphArchive`, `GraphWriter`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC, STATE

_MARK = b"LFGRAPHS"
_TAIL = struct.Struct("<qq8s")
_NUM_COLUMNS = 4


class GraphWriter:
    """Writes graphs one after another; nothing but the index is kept in memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0
        self._rows: list[tuple[int, int, int, int]] = []
        self._keys: list[str] = []

    @classmethod
    @contextmanager
    def open(cls, path: str | Path) -> Iterator[GraphWriter]:
        """Write an archive that appears whole at the end of the block, or not at all.

        Raises:
            UserError: the disk is full.
        """
        with atomic_output(path) as temporary, temporary.open("wb") as stream:
            writer = cls(stream)
            yield writer
            writer._finish()

    def append(self, key: str, graph: Graph) -> None:
        """Add the graph of an utterance."""
        self._rows.append((self._at, graph.start, graph.num_arcs, graph.num_states))
        self._keys.append(key)
        for records in (graph.arcs, graph.states):
            self._at += self._stream.write(np.ascontiguousarray(records).data)

    def _finish(self) -> None:
        index = np.array(self._rows, np.int64).reshape(-1, _NUM_COLUMNS)
        self._stream.write(index.data if len(index) else b"")
        self._stream.write("".join(f"{key}\n" for key in self._keys).encode())
        self._stream.write(_TAIL.pack(len(index), self._at, _MARK))


class GraphArchive:
    """The graphs of a file that `GraphWriter` wrote, by number.

    Safe to read from several threads and processes.

    Args:
        path: the file.

    Attributes:
        keys: the utterance ids, in the order of writing.

    Raises:
        UserError: there is no such file, or it is something else or truncated.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise UserError("no such file", file=path, remedy="check the path")
        size = self._path.stat().st_size
        if size < _TAIL.size:
            self._refuse()
        with self._path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._buffer = memoryview(mapped)
        count, at, mark = _TAIL.unpack(self._buffer[-_TAIL.size :])
        end = at + count * _NUM_COLUMNS * 8
        if mark != _MARK or count < 0 or not 0 <= at <= end <= size - _TAIL.size:
            self._refuse()
        self._index = np.frombuffer(self._buffer, "<i8", count * _NUM_COLUMNS, at)
        self._index = self._index.reshape(count, _NUM_COLUMNS)
        self.keys = bytes(self._buffer[end : -_TAIL.size]).decode().split("\n")[:-1]
        if len(self.keys) != count:
            self._refuse()

    def _refuse(self) -> None:
        raise UserError(
            "not an archive of graphs, or truncated",
            file=self._path,
            remedy="make it again",
        )

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> Graph:
        """A graph by its number: views of the file."""
        begin, start, num_arcs, num_states = self._index[number].tolist()
        arcs = np.frombuffer(self._buffer, ARC, num_arcs, begin)
        middle = begin + num_arcs * ARC.itemsize
        return Graph(
            start, np.frombuffer(self._buffer, STATE, num_states, middle), arcs
        )

    def __iter__(self) -> Iterator[Graph]:
        return (self[number] for number in range(len(self)))
