r"""Kaldi's basic streams: tokens, numbers, vectors, matrices and archives.

Kaldi writes every object either in binary or in text. A binary object is announced by
the two bytes `\0B`; in it a number is a byte telling its width followed by the number,
little-endian, and a token is its characters and one space. A text object holds the
same tokens and numbers separated by white space; floats are printed with seven
significant digits.

* `KaldiReader`, `KaldiWriter`: the verbs that models, trees and topologies are made of.
* `read_archive`: (key, object) pairs of an archive, streamed.
* `read_int_vectors`, `write_int_vectors`: alignments. `read_matrices`,
  `write_matrices`: features and log-likelihoods, compressed ones too when reading.

Source: Kaldi `base/io-funcs.{h,cc}`, `matrix/kaldi-{vector,matrix}.cc`,
`matrix/compressed-matrix.cc`, `util/kaldi-holder-inl.h`.
"""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, NoReturn, TypeVar, cast

import numpy as np

from latflow import kaldi_compressed
from latflow.errors import UserError
from latflow.files import atomic_output

Object = TypeVar("Object")

BINARY_MARK = b"\0B"
_CHUNK = 1 << 18  # bytes asked from the file at a time
_TOKEN = re.compile(rb"\S+")
_NOT_SPACE = re.compile(rb"\S")
_WIDTH_AND_INT = np.dtype([("width", "i1"), ("value", "<i4")])  # one int of an archive


class KaldiReader:
    r"""Read Kaldi's tokens, numbers and arrays from one file, binary or text.

    Reading is buffered: whatever follows in the file must be read through the same
    reader. It can be used in a `with` statement and closes the file then.

    Args:
        stream: a file opened for reading bytes.
        name: what error messages call the file.
        binary: the format; None looks for the mark `\0B` at the present position.

    Raises:
        UserError: from every method, if the file ends early or holds something else
            than asked for; names the file and the byte.
    """

    def __init__(
        self,
        stream: IO[bytes],
        *,
        name: str | Path | None = None,
        binary: bool | None = None,
    ) -> None:
        self._stream = stream
        self._name = name
        self._buffer = b""
        self._at = 0  # position in the buffer
        self._base = 0  # position of the buffer in the file
        self.binary: bool = self.take_binary_mark() if binary is None else binary

    @classmethod
    def open(cls, path: str | Path, *, binary: bool | None = None) -> KaldiReader:
        """Open a file (gunzipped if its name ends in `.gz`).

        Args:
            path: the file.
            binary: as for the class; False also for archives, which start with a key.

        Raises:
            UserError: there is no such file.
        """
        source = Path(path)
        if not source.is_file():
            raise UserError("no such file", file=source, remedy="check the path")
        return cls(_open_file(source, "rb"), name=source, binary=binary)

    def __enter__(self) -> KaldiReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    @property
    def position(self) -> int:
        """Bytes read so far (of the unpacked file, where it is gzipped)."""
        return self._base + self._at

    def fail(self, what: str) -> NoReturn:
        """Raise a UserError that names the file and the present byte."""
        raise UserError(
            f"{what} (at byte {self.position})",
            file=self._name,
            remedy="the file is truncated or of another kind; make it again",
        )

    # -- the buffer ---------------------------------------------------------------

    def _more(self) -> bool:
        """Append a chunk of the file to the unread part of the buffer."""
        try:
            chunk = self._stream.read(max(_CHUNK, len(self._buffer) - self._at))
        except (EOFError, gzip.BadGzipFile) as error:
            self.fail(f"not a whole gzip file: {error}")
        self._base += self._at
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def bytes(self, count: int) -> bytes:
        """Take exactly `count` bytes."""
        while len(self._buffer) - self._at < count:
            if not self._more():
                self.fail(f"the file ends where {count} bytes are expected")
        taken = self._buffer[self._at : self._at + count]
        self._at += count
        return taken

    def _until(self, mark: bytes) -> bytes:
        """Take the bytes before `mark`, and drop the mark."""
        start = 0
        while (found := self._buffer.find(mark, self._at + start)) < 0:
            start = max(0, len(self._buffer) - self._at - len(mark) + 1)
            if not self._more():
                self.fail(f"the file ends before '{mark.decode()}'")
        taken = self._buffer[self._at : found]
        self._at = found + len(mark)
        return taken

    def _line(self) -> bytes:
        """Take the rest of the line; the last one may lack its end."""
        while (found := self._buffer.find(b"\n", self._at)) < 0 and self._more():
            pass
        end = len(self._buffer) if found < 0 else found + 1
        line = self._buffer[self._at : end]
        self._at = end
        return line

    def take_binary_mark(self) -> bool:
        r"""Take `\0B` if it comes next, and tell whether it did."""
        while len(self._buffer) - self._at < len(BINARY_MARK) and self._more():
            pass
        is_binary = self._buffer.startswith(BINARY_MARK, self._at)
        if is_binary:
            self._at += len(BINARY_MARK)
        return is_binary

    def _find_token(self) -> re.Match[bytes] | None:
        """Skip white space and find the next token whole; None at the end of file."""
        while True:
            first = _NOT_SPACE.search(self._buffer, self._at)
            if first is None:
                self._at = len(self._buffer)
                if not self._more():
                    return None
                continue
            self._at = first.start()
            found = _TOKEN.match(self._buffer, self._at)
            if found is not None and found.end() < len(self._buffer):
                return found
            if not self._more():
                return _TOKEN.match(self._buffer, self._at)

    # -- tokens and numbers ---------------------------------------------------------

    def at_end(self) -> bool:
        """True if nothing but white space is left."""
        return self._find_token() is None

    def token(self) -> str:
        """The next word, up to white space; takes one white space after it."""
        found = self._find_token()
        if found is None:
            self.fail("the file ends where a token is expected")
        self._at = min(found.end() + 1, len(self._buffer))
        return self._decode(found.group())

    def peek_token(self) -> str:
        """The next word, left in place; empty at the end of the file."""
        found = self._find_token()
        return "" if found is None else self._decode(found.group())

    def expect(self, *tokens: str) -> str:
        """Take the next word, which must be one of `tokens`."""
        found = self.peek_token()
        if found not in tokens:
            wanted = " or ".join(f"'{token}'" for token in tokens)
            self.fail(f"found '{found[:40]}' where {wanted} is expected")
        return self.token()

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail("bytes that are no text where a token is expected")

    def _width(self, *widths: int) -> int:
        """Take the byte that tells how wide a binary number is."""
        width = struct.unpack("b", self.bytes(1))[0]
        if width not in widths:
            self._at -= 1
            self.fail(f"a number of {width} bytes where {abs(widths[0])} are expected")
        return width

    def _number(self, parse: Callable[[str], int | float], what: str) -> int | float:
        word = self.peek_token()
        try:
            value = parse(word)
        except ValueError:
            self.fail(f"found '{word[:40]}' where {what} is expected")
        self.token()
        return value

    def int32(self) -> int:
        """An integer of 32 bits."""
        if not self.binary:
            return int(self._number(int, "an integer"))
        self._width(4)
        return struct.unpack("<i", self.bytes(4))[0]

    def uint32(self) -> int:
        """An integer of 32 bits without sign, which Kaldi marks with width -4."""
        if not self.binary:
            return int(self._number(int, "an integer"))
        self._width(-4, 4)
        return struct.unpack("<I", self.bytes(4))[0]

    def float32(self) -> float:
        """A float, written in 32 or in 64 bits."""
        if not self.binary:
            return float(self._number(float, "a number"))
        width = self._width(4, 8)
        return struct.unpack("<f" if width == 4 else "<d", self.bytes(width))[0]

    def boolean(self) -> bool:
        """A truth value: `T` or `F`."""
        letter = self.bytes(1).decode("latin-1") if self.binary else self.token()
        if letter not in ("T", "F"):
            self.fail(f"found '{letter[:40]}' where T or F is expected")
        return letter == "T"

    # -- arrays -------------------------------------------------------------------

    def int_vector(self) -> np.ndarray:
        """A vector of integers, int32[N] (Kaldi's `WriteIntegerVector`)."""
        if self.binary:
            self._width(4)
            return self._raw("<i4", self._count())
        self.expect("[")
        return self._parse(self._until(b"]").split(), int).astype(np.int32)

    def int_line(self) -> np.ndarray:
        """The integers on the rest of this line, int32[N] (an item of a text archive).

        An empty vector's line may have ended with the key; then it is empty.
        """
        if self._buffer[self._at - 1 : self._at] == b"\n":
            return np.zeros(0, np.int32)
        line = self._line()
        if not line:
            self.fail("the file ends behind a key")
        return self._parse(line.split(), int).astype(np.int32)

    def float_vector(self) -> np.ndarray:
        """A vector, float32[N] or float64[N] as it was written (text: float32)."""
        if self.binary:
            kind = self.expect("FV", "DV")
            return self._raw("<f4" if kind == "FV" else "<f8", self._size())
        self.expect("[")
        return self._parse(self._until(b"]").split(), float).astype(np.float32)

    def float_matrix(self) -> np.ndarray:
        """A matrix, float32[R, C] or float64[R, C] as it was written (text: float32).

        Compressed matrices (`CM`, `CM2`, `CM3`) come out as float32.
        """
        if not self.binary:
            return self._text_matrix()
        kind = self.expect("FM", "DM", *kaldi_compressed.KINDS)
        if kind in kaldi_compressed.KINDS:
            return self._compressed_matrix(kind)
        rows, columns = self._size(), self._size()
        dtype = "<f4" if kind == "FM" else "<f8"
        return self._raw(dtype, rows * columns).reshape(rows, columns)

    def _size(self) -> int:
        """A length written as an int32 with its width byte."""
        self._width(4)
        return self._count()

    def _count(self) -> int:
        """A length written as four plain bytes."""
        count = struct.unpack("<i", self.bytes(4))[0]
        if count < 0:
            self.fail(f"a negative length: {count}")
        return count

    def _raw(self, dtype: str, count: int) -> np.ndarray:
        item = np.dtype(dtype)
        return np.frombuffer(self.bytes(item.itemsize * count), item).copy()

    def _parse(
        self, words: Sequence[bytes], parse: Callable[[bytes], int | float]
    ) -> np.ndarray:
        try:
            return np.array([parse(word) for word in words], np.float64)
        except ValueError as error:
            self.fail(f"not a number: {error}")

    def _text_matrix(self) -> np.ndarray:
        self.expect("[")
        lines = self._until(b"]").replace(b";", b"\n").split(b"\n")
        rows = [row for line in lines if (row := line.split())]
        if not rows:
            return np.zeros((0, 0), np.float32)
        if any(len(row) != len(rows[0]) for row in rows):
            self.fail("a matrix whose rows differ in length")
        values = self._parse([word for row in rows for word in row], float)
        return values.reshape(len(rows), -1).astype(np.float32)

    def _compressed_matrix(self, kind: str) -> np.ndarray:
        """What follows the token of a lossy compressed matrix."""
        low, span, rows, columns = struct.unpack("<ffii", self.bytes(16))
        if rows < 0 or columns < 0:
            self.fail(f"a matrix of {rows} rows and {columns} columns")
        raw = self.bytes(kaldi_compressed.compressed_size(kind, rows, columns))
        return kaldi_compressed.expand(kind, raw, (rows, columns), low, span)


class KaldiWriter:
    r"""Write Kaldi's tokens, numbers and arrays, binary or text.

    Args:
        stream: a file opened for writing bytes.
        binary: the format.
        mark: write `\0B` first if binary (each object of an archive has its own).
    """

    def __init__(
        self, stream: IO[bytes], *, binary: bool = True, mark: bool = True
    ) -> None:
        self._stream = stream
        self.binary = binary
        if binary and mark:
            stream.write(BINARY_MARK)

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, binary: bool = True) -> Iterator[KaldiWriter]:
        """Write a file that appears whole at the end of the block, or not at all."""
        with (
            atomic_output(path) as temporary,
            _open_file(temporary, "wb") as stream,
        ):
            yield cls(stream, binary=binary)

    def write_bytes(self, raw: bytes) -> None:
        """Write bytes as they are."""
        self._stream.write(raw)

    def _text(self, text: str) -> None:
        self._stream.write(text.encode("utf-8"))

    def end_line(self) -> None:
        """Break the line in text; nothing in binary."""
        if not self.binary:
            self._text("\n")

    def write_token(self, token: str) -> None:
        """Write a word (without white space in it) and a space."""
        self._text(f"{token} ")

    def write_int32(self, value: int) -> None:
        """Write an integer of 32 bits."""
        if self.binary:
            self._stream.write(struct.pack("<bi", 4, value))
        else:
            self._text(f"{value} ")

    def write_uint32(self, value: int) -> None:
        """Write an integer of 32 bits without sign."""
        if self.binary:
            self._stream.write(struct.pack("<bI", -4, value))
        else:
            self._text(f"{value} ")

    def write_float32(self, value: float) -> None:
        """Write a float in 32 bits."""
        if self.binary:
            self._stream.write(struct.pack("<bf", 4, value))
        else:
            self._text(f"{np.float32(value):.7g} ")

    def write_float64(self, value: float) -> None:
        """Write a float in 64 bits (in text still with seven digits)."""
        if self.binary:
            self._stream.write(struct.pack("<bd", 8, value))
        else:
            self._text(f"{value:.7g} ")

    def write_bool(self, value: bool) -> None:  # noqa: FBT001 - the thing written
        """Write a truth value."""
        letter = "T" if value else "F"
        self._text(letter if self.binary else f"{letter} ")

    def write_int_vector(self, values: Sequence[int] | np.ndarray) -> None:
        """Write integers[N] (Kaldi's `WriteIntegerVector`)."""
        array = np.ascontiguousarray(values, "<i4").reshape(-1)
        if self.binary:
            self._stream.write(struct.pack("<bi", 4, len(array)))
            self._stream.write(array.tobytes())
        else:
            self._text("[ " + "".join(f"{value} " for value in array.tolist()) + "]\n")

    def write_float_vector(self, vector: np.ndarray) -> None:
        """Write a vector[N]: float64 as `DV`, every other type as `FV`."""
        kind, array = _as_kaldi_floats(vector)
        if self.binary:
            self.write_token(f"{kind}V")
            self.write_int32(len(array))
            self._stream.write(array.tobytes())
        else:
            self._text(f" [ {_seven_digits(array)}]\n")

    def write_float_matrix(self, matrix: np.ndarray) -> None:
        """Write a matrix[R, C]: float64 as `DM`, every other type as `FM`."""
        kind, array = _as_kaldi_floats(matrix)
        if self.binary:
            self.write_token(f"{kind}M")
            self.write_int32(array.shape[0])
            self.write_int32(array.shape[1])
            self._stream.write(array.tobytes())
        elif array.size == 0:
            self._text(" [ ]\n")
        else:
            rows = "".join(f"\n  {_seven_digits(row)}" for row in array)
            self._text(f" [{rows}]\n")


def _as_kaldi_floats(values: np.ndarray) -> tuple[str, np.ndarray]:
    """The array in one of Kaldi's float types, and the letter that names the type."""
    if values.dtype == np.float64:
        return "D", np.ascontiguousarray(values, "<f8")
    return "F", np.ascontiguousarray(values, "<f4")


def _seven_digits(values: np.ndarray) -> str:
    """Numbers as C++ streams print them at Kaldi's precision, a space after each."""
    return ("%.7g " * len(values)) % tuple(values.tolist())


def _open_file(path: Path, mode: Literal["rb", "wb"]) -> IO[bytes]:
    """Open a file, packed if its name ends in `.gz` (then without a time stamp)."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(path, mode, mtime=0))
    return path.open(mode)


def read_archive(
    path: str | Path, read: Callable[[KaldiReader], Object]
) -> Iterator[tuple[str, Object]]:
    """Yield (key, object) of an archive, binary or text, `.gz` or not; streamed.

    Args:
        path: the archive.
        read: reads one object; `reader.binary` is set for each object by its mark.

    Raises:
        UserError: the archive is missing, truncated or garbled.
    """
    with KaldiReader.open(path, binary=False) as reader:
        while not reader.at_end():
            key = reader.token()
            reader.binary = reader.take_binary_mark()
            yield key, read(reader)
            reader.binary = False


def read_int_vectors(path: str | Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (key, int32[N]) of an archive of integer vectors, e.g. of alignments."""
    return read_archive(path, _read_int_vector)


def _read_int_vector(reader: KaldiReader) -> np.ndarray:
    """One vector of an archive: a line of integers, or each with its width byte."""
    if not reader.binary:
        return reader.int_line()
    count = reader.int32()
    if count < 0:
        reader.fail(f"a negative length: {count}")
    items = np.frombuffer(reader.bytes(5 * count), _WIDTH_AND_INT)
    if np.any(items["width"] != 4):
        reader.fail("an integer that has not four bytes")
    return items["value"].astype(np.int32)


def write_int_vectors(
    path: str | Path, items: Iterable[tuple[str, Sequence[int] | np.ndarray]]
) -> None:
    """Write a binary archive of integer vectors, whole or not at all."""
    with atomic_output(path) as temporary, _open_file(temporary, "wb") as stream:
        for key, values in items:
            array = np.asarray(values, np.int32)
            packed = np.empty(len(array), _WIDTH_AND_INT)
            packed["width"], packed["value"] = 4, array
            header = struct.pack("<bi", 4, len(array))
            stream.write(key.encode() + b" " + BINARY_MARK + header + packed.tobytes())


def read_matrices(path: str | Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (key, float32 or float64[R, C]) of an archive of matrices."""
    return read_archive(path, KaldiReader.float_matrix)


def write_matrices(path: str | Path, items: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write a binary archive of matrices [R, C], whole or not at all."""
    with atomic_output(path) as temporary, _open_file(temporary, "wb") as stream:
        for key, matrix in items:
            stream.write(key.encode() + b" ")
            KaldiWriter(stream).write_float_matrix(matrix)
