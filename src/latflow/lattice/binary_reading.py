"""Reading binary lattices, one behind the other, from a stream.

Public: `LatticeStream`, `MAGIC`.

Source: OpenFst `fst/fst.cc` (`FstHeader::Read`), Kaldi `lat/kaldi-lattice.cc`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.lattice.binary_form import scan, unpack, unpack_compact
from latflow.lattice.compact import Strings
from latflow.lattice.parts import CompactParts, LatticeParts, Parts

MAGIC = (2125659606).to_bytes(4, "little")  # OpenFst's file mark
_KINDS = {"lattice4": False, "compactlattice44": True}  # arc type -> is it compact
_CHUNK = 1 << 20
_LONGEST_KEY = 1 << 16


class LatticeStream:
    """Takes binary lattices from a stream, one after the other.

    Args:
        stream: a file opened for reading bytes.
        path: what error messages call it.
        position: where in the file the stream stands, in bytes.

    Raises:
        UserError: from every method, if the file ends early or holds something else
            than asked for; names the file and the byte.
    """

    def __init__(self, stream: IO[bytes], path: Path, position: int = 0) -> None:
        self._stream = stream
        self._path = path
        self._base = position  # of the data read so far, in the file
        self._data = b""
        self._at = 0

    @property
    def position(self) -> int:
        """The next byte of the file."""
        return self._base + self._at

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._data) and not self._more()

    def starts_binary(self) -> bool:
        """Whether a key and a binary lattice come next; takes nothing."""
        while self._find(b" ") < 0 and self._unread() < _LONGEST_KEY and self._more():
            pass
        length = max(self._find(b" "), 0)
        while self._unread() < length + 5 and self._more():
            pass
        return self._data.startswith(b" " + MAGIC, self._at + length)

    def key(self) -> str:
        """Take the key in front of a lattice, and the blank behind it."""
        while (length := self._find(b" ")) < 0:
            if self._unread() > _LONGEST_KEY or not self._more():
                self._fail("found no key where one is expected")
        return self._take(length + 1)[:-1].decode("utf-8", "replace")

    def skip(self) -> None:
        """Pass over a lattice."""
        _, num_states, is_compact = self._header()
        _, sizes = self._scan(num_states, is_compact)  # may move what is unread
        self._at += 4 * sizes[3]

    def lattice(self) -> Parts:
        """Take a lattice of either kind."""
        start, num_states, is_compact = self._header()
        words, sizes = self._scan(num_states, is_compact)
        num_arcs, num_ids, num_final_ids, end = sizes
        if is_compact:
            arcs, costs, strings, final_costs, final_strings, is_sound = unpack_compact(
                words, num_states, (num_arcs, num_ids, num_final_ids)
            )
            parts = CompactParts(
                arcs,
                costs,
                Strings(*strings),
                final_costs,
                Strings(*final_strings),
                start,
            )
        else:
            arcs, costs, final_costs, is_sound = unpack(words, num_states, num_arcs)
            parts = LatticeParts(arcs, costs, final_costs, start)
        if not is_sound or not 0 <= start < max(num_states, 1):
            self._fail("a lattice with an arc to a state that it does not have")
        self._at += 4 * end
        return parts

    def items(self) -> Iterator[tuple[str, Parts]]:
        """Take all that is left of an archive: key and contents of each lattice."""
        while not self.at_end():
            yield self.key(), self.lattice()

    def _header(self) -> tuple[int, int, bool]:
        """Take the header of an OpenFst file: start, number of states, is it compact.

        A lattice without states says that it starts at -1; 0 is returned then.
        """
        if self._take(4) != MAGIC:
            self._fail("found something else where a lattice is expected")
        names = []
        for _ in range(2):
            (length,) = struct.unpack("<i", self._take(4))
            if not 0 < length < 100:
                self._fail("found no OpenFst header where one is expected")
            names.append(self._take(length).decode("latin-1"))
        if names[0] != "vector" or names[1] not in _KINDS:
            self._fail(f"an FST of type {names[0]} {names[1]}, which is no lattice")
        _, flags, _, start, num_states, _ = struct.unpack("<iiQqqq", self._take(40))
        if flags != 0 or num_states < 0:
            self._fail("a lattice with symbol tables or an impossible header")
        return (start if num_states else 0), num_states, _KINDS[names[1]]

    def _scan(
        self,
        num_states: int,
        is_compact: bool,  # noqa: FBT001
    ) -> tuple[np.ndarray, tuple[int, int, int, int]]:
        """Read on until a whole lattice is there: its words, and its sizes."""
        while True:
            rest = memoryview(self._data)[self._at :]
            words = np.frombuffer(rest[: len(rest) // 4 * 4], "<i4")
            sizes = scan(words, num_states, is_compact)
            if sizes[3] >= 0:
                return words, sizes
            if not self._more():
                self._fail("the file ends within a lattice")

    def _unread(self) -> int:
        return len(self._data) - self._at

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        try:
            chunk = self._stream.read(max(_CHUNK, self._unread()))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"not a whole gzip file: {error}",
                file=self._path,
                remedy="the file is truncated; make it again",
            ) from error
        self._base += self._at
        self._data = self._data[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def _find(self, mark: bytes) -> int:
        """Bytes before `mark`, or -1 if it is not among those read."""
        found = self._data.find(mark, self._at)
        return found - self._at if found >= 0 else -1

    def _take(self, size: int) -> bytes:
        """Take exactly `size` bytes."""
        while self._unread() < size:
            if not self._more():
                self._fail("the file ends within a lattice")
        self._at += size
        return self._data[self._at - size : self._at]

    def _fail(self, what: str) -> NoReturn:
        """Raise a UserError that names the file and the present byte."""
        raise UserError(
            f"{what} (at byte {self.position})",
            file=self._path,
            remedy="the file is truncated or of another kind; make it again",
        )
