"""Bytes of a file, buffered, with the place told in every error."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import IO, NoReturn

from latflow.errors import UserError

_CHUNK = 1 << 18  # bytes asked from the file at a time
_TOKEN = re.compile(rb"\S+")
_NOT_SPACE = re.compile(rb"\S")


class BufferedBytes:
    """Take bytes, words and lines from a file, one after the other.

    Args:
        stream: a file opened for reading bytes; to be read through this object alone.
        name: what error messages call the file.

    Raises:
        UserError: from every method, if the file ends early; names file and byte.
    """

    def __init__(self, stream: IO[bytes], name: str | Path | None) -> None:
        self._stream = stream
        self._name = name
        self._buffer = b""
        self._at = 0  # position in the buffer
        self._base = 0  # position of the buffer in the file

    @property
    def position(self) -> int:
        """Bytes taken so far (of the unpacked file, where it is gzipped)."""
        return self._base + self._at

    def fail(self, what: str) -> NoReturn:
        """Raise a UserError that names the file and the present byte."""
        raise UserError(
            f"{what} (at byte {self.position})",
            file=self._name,
            remedy="the file is truncated or of another kind; make it again",
        )

    def _more(self) -> bool:
        """Append a chunk of the file to the unread part of the buffer."""
        try:
            chunk = self._stream.read(max(_CHUNK, len(self._buffer) - self._at))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.fail(f"not a whole gzip file: {error}")
        self._base += self._at
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def take(self, count: int) -> bytes:
        """Take exactly `count` bytes."""
        while len(self._buffer) - self._at < count:
            if not self._more():
                self.fail(f"the file ends where {count} bytes are expected")
        taken = self._buffer[self._at : self._at + count]
        self._at += count
        return taken

    def take_if(self, mark: bytes) -> bool:
        """Take `mark` if it comes next, and tell whether it did."""
        while len(self._buffer) - self._at < len(mark) and self._more():
            pass
        is_next = self._buffer.startswith(mark, self._at)
        if is_next:
            self._at += len(mark)
        return is_next

    def take_until(self, mark: bytes) -> bytes:
        """Take the bytes before `mark`, and drop the mark."""
        start = 0
        while (found := self._buffer.find(mark, self._at + start)) < 0:
            start = max(0, len(self._buffer) - self._at - len(mark) + 1)
            if not self._more():
                self.fail(f"the file ends before '{mark.decode()}'")
        taken = self._buffer[self._at : found]
        self._at = found + len(mark)
        return taken

    def take_line(self) -> bytes:
        """Take the rest of the line with its end, which the last one may lack."""
        while (found := self._buffer.find(b"\n", self._at)) < 0 and self._more():
            pass
        end = len(self._buffer) if found < 0 else found + 1
        line = self._buffer[self._at : end]
        self._at = end
        return line

    def find_word(self) -> tuple[bytes, bytes]:
        """Skip white space and look at the next word and the byte behind it.

        Nothing is taken but the white space; both are empty at the end of the file.
        """
        while True:
            first = _NOT_SPACE.search(self._buffer, self._at)
            self._at = len(self._buffer) if first is None else first.start()
            word = _TOKEN.match(self._buffer, self._at)
            if word is not None and word.end() < len(self._buffer):
                return word.group(), self._buffer[word.end() : word.end() + 1]
            if not self._more():
                return self._buffer[self._at :], b""
