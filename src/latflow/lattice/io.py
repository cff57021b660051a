"""Lattices in Kaldi's archives, binary and text, streamed.

Kaldi writes a lattice as an OpenFst `vector` FST behind its key: arc type `lattice4`
for state-level lattices, `compactlattice44` for the compact form in which an arc is a
word with a string of transition-ids. Both are read (binary, text, gzipped); a compact
lattice is spread out to arcs of at most one transition-id each. State-level lattices
are written, and what Kaldi wrote is written back byte for byte.

Text: `source target transition-id word graph,acoustic` an arc,
`state graph,acoustic` a final state, an empty line behind each lattice.

Public: `read_lattices`, `write_lattices`, `LatticeWriter`.

Source: Kaldi `lat/kaldi-lattice.cc`, `fstext/lattice-weight.h`,
`fstext/lattice-utils-inl.h` (`ConvertLattice`); OpenFst `fst/vector-fst.h`.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.lattice import text_form
from latflow.lattice.binary_form import KINDS, MAGIC, Spread, scan, spread
from latflow.lattice.lattice import Lattice

_CHUNK = 1 << 20
_LONGEST_KEY = 1 << 16

# OpenFst property bits (fst/properties.h): what the file says about its arcs.
_EXPANDED_MUTABLE = 0x3
_ACCEPTOR, _NOT_ACCEPTOR = 0x10000, 0x20000
_EPSILONS, _NO_EPSILONS = 0x400000, 0x800000
_I_EPSILONS, _NO_I_EPSILONS = 0x1000000, 0x2000000
_O_EPSILONS, _NO_O_EPSILONS = 0x4000000, 0x8000000
_WEIGHTED, _UNWEIGHTED = 0x100000000, 0x200000000


def read_lattices(path: str | Path) -> Iterator[tuple[str, Lattice]]:
    """Yield (utterance, lattice) of an archive in its order.

    Args:
        path: binary or text archive; gunzipped if its name ends in `.gz`.

    Raises:
        UserError: the file is missing, truncated or of another kind, or a lattice has
            a cycle or paths of different lengths in frames.
    """
    source = Path(path)
    if not source.is_file():
        raise UserError("no such file", file=source, remedy="check the path")
    with _opened(source, "rb") as stream:
        buffer = _Buffer(stream, source)
        if not buffer.more(_LONGEST_KEY):
            return
        is_binary = buffer.find(b" " + MAGIC) == buffer.find(b" ") >= 0
        items = _read_binary(buffer) if is_binary else text_form.read(source)
        for utterance, parts in items:
            try:
                yield utterance, Lattice.from_arcs(*parts[:3], start=parts[3])
            except UserError as error:
                raise UserError(
                    error.what, file=source, utterance=utterance, remedy=error.remedy
                ) from None


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """Open a file, packed if its name ends in `.gz` (then without a time stamp)."""
    if path.suffix == ".gz":
        with gzip.GzipFile(path, mode, compresslevel=6, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
    else:
        with path.open(mode) as stream:
            yield cast("IO[bytes]", stream)


class _Buffer:
    """The unread bytes of a stream, as many as have been asked for."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream = stream
        self._path = path
        self._base = 0
        self.data = b""
        self.at = 0

    def more(self, size: int = _CHUNK) -> bool:
        """Read on; False at the end of the file."""
        try:
            chunk = self._stream.read(max(size, len(self.data) - self.at))
        except (EOFError, gzip.BadGzipFile) as error:
            raise UserError(
                f"not a whole gzip file: {error}",
                file=self._path,
                remedy="the file is truncated; make it again",
            ) from error
        self._base += self.at
        self.data = self.data[self.at :] + chunk
        self.at = 0
        return bool(chunk)

    def find(self, mark: bytes) -> int:
        """Bytes before `mark`, or -1 if it is not among those read."""
        found = self.data.find(mark, self.at)
        return found - self.at if found >= 0 else -1

    def take(self, size: int) -> bytes:
        """Take exactly `size` bytes."""
        while len(self.data) - self.at < size:
            if not self.more():
                self.fail("the file ends within a lattice")
        self.at += size
        return self.data[self.at - size : self.at]

    def words(self) -> np.ndarray:
        """The bytes read so far as int32, in place of whole words."""
        rest = self.data[self.at :]
        return np.frombuffer(rest[: len(rest) // 4 * 4], "<i4")

    def fail(self, what: str) -> None:
        """Raise a UserError that names the file and the present byte."""
        raise UserError(
            f"{what} (at byte {self._base + self.at})",
            file=self._path,
            remedy="the file is truncated or of another kind; make it again",
        )


def _read_binary(buffer: _Buffer) -> Iterator[tuple[str, Spread]]:
    """Yield key and contents of each lattice of a binary archive."""
    while buffer.at < len(buffer.data) or buffer.more():
        while (length := buffer.find(b" ")) < 0:
            if len(buffer.data) - buffer.at > _LONGEST_KEY or not buffer.more():
                buffer.fail("found no key where one is expected")
        key = buffer.take(length + 1)[:-1]
        start, num_states, is_compact = _read_header(buffer)
        while True:
            words = buffer.words()
            num_arcs, num_extra, end = scan(words, num_states, is_compact)
            if end >= 0:
                break
            if not buffer.more():
                buffer.fail("the file ends within a lattice")
        buffer.at += 4 * end
        sizes = (num_states, num_arcs, num_extra)
        arcs, costs, final_costs, is_sound = spread(words, sizes, is_compact)
        if not is_sound or not 0 <= start < max(num_states, 1):
            buffer.fail("a lattice with an arc to a state that it does not have")
        yield key.decode("utf-8", "replace"), (arcs, costs, final_costs, start)


def _read_header(buffer: _Buffer) -> tuple[int, int, bool]:
    """Read the header of an OpenFst file: start, number of states, is it compact."""
    if buffer.take(4) != MAGIC:
        buffer.fail("found something else where a lattice is expected")
    names = []
    for _ in range(2):
        (length,) = struct.unpack("<i", buffer.take(4))
        if not 0 < length < 100:
            buffer.fail("found no OpenFst header where one is expected")
        names.append(buffer.take(length).decode("latin-1"))
    if names[0] != "vector" or names[1] not in KINDS:
        buffer.fail(f"an FST of type {names[0]} {names[1]}, which is no lattice")
    _, flags, _, start, num_states, _ = struct.unpack("<iiQqqq", buffer.take(40))
    if flags != 0 or num_states < 0:
        buffer.fail("a lattice with symbol tables or an impossible header")
    return start, num_states, KINDS[names[1]]


class LatticeWriter:
    """Writes lattices to an open stream, one after the other.

    Args:
        stream: a file opened for writing bytes.
        binary: Kaldi's binary form, or its text form.
    """

    def __init__(self, stream: IO[bytes], *, binary: bool = True) -> None:
        self._stream = stream
        self._binary = binary

    def write(self, utterance: str, lattice: Lattice) -> None:
        """Write one lattice."""
        if self._binary:
            self._stream.write(utterance.encode() + b" " + _as_bytes(lattice))
        else:
            self._stream.write(text_form.as_text(utterance, lattice).encode())

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, binary: bool = True) -> Iterator[LatticeWriter]:
        """Write an archive that appears whole at the end of the block, or not at all.

        Args:
            path: the archive; packed if its name ends in `.gz`.
            binary: Kaldi's binary form, or its text form.
        """
        with atomic_output(path) as temporary, _opened(temporary, "wb") as stream:
            yield cls(stream, binary=binary)


def write_lattices(
    path: str | Path, items: Iterable[tuple[str, Lattice]], *, binary: bool = True
) -> None:
    """Write an archive of state-level lattices, whole or not at all.

    Args:
        path: the archive; packed if its name ends in `.gz`.
        items: (utterance, lattice).
        binary: Kaldi's binary form, or its text form.
    """
    with LatticeWriter.open(path, binary=binary) as writer:
        for utterance, lattice in items:
            writer.write(utterance, lattice)


def _as_bytes(lattice: Lattice) -> bytes:
    """The OpenFst file of a lattice."""
    header = struct.pack(
        "<4si6si8siiQqqq",
        MAGIC,
        6,
        b"vector",
        8,
        b"lattice4",
        2,  # version
        0,  # flags: no symbol tables, not aligned
        _properties(lattice),
        0,  # start
        lattice.num_states,
        0,  # number of arcs, which OpenFst leaves out of vector FSTs
    )
    num_states, num_arcs = lattice.num_states, lattice.num_arcs
    words = np.empty(4 * num_states + 5 * num_arcs, "<i4")
    states = np.arange(num_states)
    begin = np.asarray(lattice.arc_begin)
    at_state = 4 * states + 5 * begin[:-1]
    at_arc = 5 * np.arange(num_arcs) + 4 * (lattice.source().astype(np.int64) + 1)
    count = np.diff(begin)
    words[at_state] = lattice.final_graph_cost.view("<i4")
    words[at_state + 1] = lattice.final_acoustic_cost.view("<i4")
    words[at_state + 2] = count
    words[at_state + 3] = 0
    words[at_arc] = lattice.transition_id
    words[at_arc + 1] = lattice.word
    words[at_arc + 2] = lattice.graph_cost.view("<i4")
    words[at_arc + 3] = lattice.acoustic_cost.view("<i4")
    words[at_arc + 4] = lattice.next_state
    return header + words.tobytes()


def _properties(lattice: Lattice) -> int:
    """What OpenFst knows of a lattice whose weights have been scaled, as Kaldi's."""
    ids, words = lattice.transition_id, lattice.word
    graph = np.concatenate([lattice.graph_cost, lattice.final_graph_cost])
    acoustic = np.concatenate([lattice.acoustic_cost, lattice.final_acoustic_cost])
    is_one = (graph == 0) & (acoustic == 0)
    is_zero = np.isinf(graph) & np.isinf(acoustic)
    known = _EXPANDED_MUTABLE
    known |= _NOT_ACCEPTOR if np.any(ids != words) else _ACCEPTOR
    known |= _EPSILONS if np.any((ids == 0) & (words == 0)) else _NO_EPSILONS
    known |= _I_EPSILONS if np.any(ids == 0) else _NO_I_EPSILONS
    known |= _O_EPSILONS if np.any(words == 0) else _NO_O_EPSILONS
    return known | (_UNWEIGHTED if np.all(is_one | is_zero) else _WEIGHTED)
