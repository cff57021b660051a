"""Encodings of Kaldi's files: buffered bytes, compressed matrices, numbers as text.

Compressed matrices are lossy: `CM2` and `CM3` are linear in [low, low + span], with 16
and 8 bits a value. `CM` keeps four quantiles of each column (0, 25, 75, 100 %) in 16
bits and places each value by 8 bits on the broken line through them: 64 steps up to the
lower quartile, 128 more up to the upper one, 63 above.

Source: Kaldi `matrix/compressed-matrix.{h,cc}` (`GlobalHeader`, `CopyToMat`),
`matrix/kaldi-vector.cc`, `matrix/kaldi-matrix.cc` (`Read`, `Write`).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

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
        """Take `mark` if it comes next, and return whether it did."""
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


COMPRESSED_KINDS = ("CM", "CM2", "CM3")
_KNOTS = np.array([0.0, 64.0, 192.0, 255.0])  # code of each quantile


def compressed_size(kind: str, rows: int, columns: int) -> int:
    """Return the number of bytes that follow the header of a compressed matrix."""
    if kind == "CM":
        return columns * (8 + rows)
    return rows * columns * (2 if kind == "CM2" else 1)


def expand_compressed(
    kind: str, raw: bytes, shape: tuple[int, int], low: float, span: float
) -> np.ndarray:
    """Expand the bytes after the header of a compressed matrix.

    Args:
        kind: one of `COMPRESSED_KINDS`.
        raw: `compressed_size(kind, *shape)` bytes.
        shape: (rows R, columns C).
        low: the smallest value that a code can stand for.
        span: the largest one minus `low`.

    Returns:
        float32[R, C].
    """
    rows, columns = shape
    if kind != "CM":
        dtype, steps = ("<u2", 65535.0) if kind == "CM2" else ("<u1", 255.0)
        codes = np.frombuffer(raw, dtype).reshape(rows, columns)
        return (low + codes * (span / steps)).astype(np.float32)
    header = np.frombuffer(raw[: 8 * columns], "<u2").reshape(columns, 4)
    quantiles = low + header * (span / 65535.0)
    codes = np.frombuffer(raw[8 * columns :], "<u1").reshape(columns, rows)
    values = np.empty((rows, columns), np.float32)
    for column in range(columns):
        values[:, column] = np.interp(codes[column], _KNOTS, quantiles[column])
    return values


def parse_numbers(words: Sequence[bytes]) -> np.ndarray:
    """Turn words into float64[N].

    Raises:
        ValueError: one is not a number.
    """
    return np.array([float(word) for word in words], np.float64)


def parse_matrix(text: bytes) -> np.ndarray:
    """Turn what is between the brackets of a text matrix into float32[R, C].

    Rows end with a line or a semicolon; empty ones do not count.

    Raises:
        ValueError: a word is not a number, or rows differ in length.
    """
    lines = text.replace(b";", b"\n").split(b"\n")
    rows = [row for line in lines if (row := line.split())]
    if not rows:
        return np.zeros((0, 0), np.float32)
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("a matrix whose rows differ in length")
    values = parse_numbers([word for row in rows for word in row])
    return values.reshape(len(rows), -1).astype(np.float32)


def format_floats(values: np.ndarray) -> str:
    """Return numbers[N] as C++ streams print them for Kaldi, a space after each."""
    return ("%.7g " * len(values)) % tuple(values.tolist())


def format_matrix(matrix: np.ndarray) -> str:
    """Return a matrix[R, C] in brackets, each row on its own line."""
    if matrix.size == 0:
        return " [ ]\n"
    rows = "".join(f"\n  {format_floats(row)}" for row in matrix)
    return f" [{rows}]\n"


def as_kaldi_floats(values: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the array in a float type of Kaldi's, and the type's letter."""
    if values.dtype == np.float64:
        return "D", np.ascontiguousarray(values, "<f8")
    return "F", np.ascontiguousarray(values, "<f4")
