"""Files that are read as if their headers stated how long they are."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True)
class Mend:
    """How a file is to be read.

    Attributes:
        header: the bytes that stand for those before `begin`.
        begin: where the file itself is read from, bytes from its beginning.
        end: where it ends, bytes from its beginning.
        is_wrong: whether the header says another length, not that it has none.
    """

    header: bytes
    begin: int
    end: int
    is_wrong: bool


class MendedFile(io.RawIOBase):
    """A file with another beginning and another end.

    Args:
        stream: the file; is closed with this object where `owned`.
        mend: how it is read.
    """

    def __init__(self, stream: BinaryIO, mend: Mend, *, owned: bool) -> None:
        super().__init__()
        self._stream = stream
        self._header = mend.header
        self._shift = mend.begin - len(mend.header)
        self._end = mend.end - self._shift
        self.is_wrong = mend.is_wrong
        self._owned = owned
        self._at = 0

    def readable(self) -> bool:
        """Return whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Return whether it can be sought in."""
        return True

    def tell(self) -> int:
        """Return where it stands."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}
        self._at = max(0, origin[whence] + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read into a buffer."""
        number = max(0, min(len(buffer), self._end - self._at))
        data = self._header[self._at : self._at + number]
        if len(data) < number:
            self._stream.seek(self._at + len(data) + self._shift)
            data += self._stream.read(number - len(data))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        """Close it, and the file where it is its own."""
        if self._owned:
            self._stream.close()
        super().close()
