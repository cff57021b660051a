r"""Kaldi's basic streams: tokens, numbers, vectors, matrices and archives.

Kaldi writes every object either in binary or in text. A binary object is announced by
the two bytes `\0B`; in it a number is a byte with its width followed by the number,
little-endian, and a token is its characters and one space. A text object holds the same
tokens and numbers separated by white space; floats are printed with seven significant
digits.

* `KaldiReader`, `KaldiWriter`: the verbs that models, trees and topologies are made of.
* `read_archive`: (key, object) pairs of an archive, streamed.
* `read_int_vectors`, `write_int_vectors`: alignments. `read_matrices`,
  `write_matrices`: features and log-likelihoods, compressed ones too when reading.

Source: Kaldi `base/io-funcs.{h,cc}`, `matrix/kaldi-{vector,matrix}.cc`,
`matrix/compressed-matrix.cc`, `util/kaldi-holder-inl.h`.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from latflow.archive_sizes import checked_entries
from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.kaldi import encoding
from latflow.kaldi.encoding import BufferedBytes

Object = TypeVar("Object")

BINARY_MARK = b"\0B"
_WIDTH_AND_INT = np.dtype([("width", "i1"), ("value", "<i4")])  # one int of an archive


class KaldiReader(BufferedBytes):
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
        super().__init__(stream, name)
        self._separator = b""  # what followed the last token
        self.binary: bool = self.take_binary_mark() if binary is None else binary

    @classmethod
    def open(cls, path: str | Path, *, binary: bool | None = None) -> KaldiReader:
        """Open a file (gunzipped if its name ends in `.gz`).

        Args:
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

    def take_binary_mark(self) -> bool:
        r"""Take `\0B` if it comes next, and return whether it did."""
        return self.take_if(BINARY_MARK)

    # -- tokens and numbers ---------------------------------------------------------

    def at_end(self) -> bool:
        """Return whether nothing but white space is left."""
        return not self.find_word()[0]

    def token(self) -> str:
        """Return the next word, up to white space; takes one white space after it."""
        word, self._separator = self.find_word()
        if not word:
            self.fail("the file ends where a token is expected")
        self.take(len(word) + len(self._separator))
        return self._decode(word)

    def peek_token(self) -> str:
        """Return the next word, left in place; empty at the end of the file."""
        return self._decode(self.find_word()[0])

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
            self.fail("bytes that are not text where a token is expected")

    def _width(self, *widths: int) -> int:
        """Take the byte with the width of a binary number."""
        width = struct.unpack("b", self.take(1))[0]
        if width not in widths:
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

    def _integer(self, least: int, end: int) -> int:
        value = int(self._number(int, "an integer"))
        if not least <= value < end:
            self.fail("an integer of more than 32 bits")
        return value

    def int32(self) -> int:
        """Return an integer of 32 bits."""
        if not self.binary:
            return self._integer(-(2**31), 2**31)
        self._width(4)
        return struct.unpack("<i", self.take(4))[0]

    def uint32(self) -> int:
        """Return an unsigned integer of 32 bits, marked with width -4."""
        if not self.binary:
            return self._integer(0, 2**32)
        self._width(-4, 4)
        return struct.unpack("<I", self.take(4))[0]

    def int64(self) -> int:
        """Return an integer of 64 bits, of a binary file."""
        self._width(8)
        return struct.unpack("<q", self.take(8))[0]

    def float32(self) -> float:
        """Return a float, written in 32 or in 64 bits."""
        if not self.binary:
            return float(self._number(float, "a number"))
        width = self._width(4, 8)
        return struct.unpack("<f" if width == 4 else "<d", self.take(width))[0]

    # -- arrays -------------------------------------------------------------------

    def array(self, dtype: npt.DTypeLike, count: int) -> np.ndarray:
        """Return numbers that have nothing before or between them, of a binary file."""
        if count < 0:
            self.fail(f"a negative length: {count}")
        item = np.dtype(dtype)
        return np.frombuffer(self.take(item.itemsize * count), item).copy()

    def int_vector(self) -> np.ndarray:
        """Return a vector of integers, int32[N] (Kaldi's `WriteIntegerVector`)."""
        if self.binary:
            self._width(4)
            return self.array("<i4", self._count())
        self.expect("[")
        return self._integers(self.take_until(b"]"))

    def int_pairs(self) -> np.ndarray:
        """Return pairs of integers, int32[N, 2] (Kaldi's `WriteIntegerPairVector`)."""
        if self.binary:
            self._width(4)
            return self.array("<i4", 2 * self._count()).reshape(-1, 2)
        self.expect("[")
        numbers = self._integers(self.take_until(b"]").replace(b",", b" "))
        if len(numbers) % 2:
            self.fail("a number without its pair")
        return numbers.reshape(-1, 2)

    def int_line(self) -> np.ndarray:
        """Return the integers on the rest of this line, int32[N].

        An empty vector's line may have ended with the key; then it is empty.
        """
        if self._separator == b"\n":
            return np.zeros(0, np.int32)
        line = self.take_line()
        if not line:
            self.fail("the file ends behind a key")
        return self._integers(line)

    def float_vector(self) -> np.ndarray:
        """Return a vector, float32[N] or float64[N] (text: float32)."""
        if self.binary:
            kind = self.expect("FV", "DV")
            return self.array("<f4" if kind == "FV" else "<f8", self._size())
        self.expect("[")
        return self._numbers(self.take_until(b"]")).astype(np.float32)

    def float_matrix(self) -> np.ndarray:
        """Return a matrix, float32[R, C] or float64[R, C] (text: float32).

        Compressed matrices (`CM`, `CM2`, `CM3`) come out as float32.
        """
        if not self.binary:
            return self._text_matrix()
        kind = self.expect("FM", "DM", *encoding.COMPRESSED_KINDS)
        if kind in encoding.COMPRESSED_KINDS:
            return self._compressed_matrix(kind)
        rows, columns = self._size(), self._size()
        dtype = "<f4" if kind == "FM" else "<f8"
        return self.array(dtype, rows * columns).reshape(rows, columns)

    def symmetric_matrix(self) -> np.ndarray:
        """Return a matrix written as its lower triangle (Kaldi's `SpMatrix`).

        Returns:
            float32[R, R] or float64[R, R] (text: float32).
        """
        if self.binary:
            kind = self.expect("FP", "DP")
            rows = self._size()
            half = rows * (rows + 1) // 2
            values = self.array("<f4" if kind == "FP" else "<f8", half)
        else:
            self.expect("[")
            values = self._numbers(self.take_until(b"]")).astype(np.float32)
            rows = int((2 * len(values)) ** 0.5)
            if rows * (rows + 1) != 2 * len(values):
                self.fail(f"{len(values)} numbers are not a triangle")
        out = np.empty((rows, rows), values.dtype)
        below = np.tril_indices(rows)
        out[below] = out.T[below] = values
        return out

    def _size(self) -> int:
        """Return a length written as an int32 with its width byte."""
        self._width(4)
        return self._count()

    def _count(self) -> int:
        """Return a length written as four plain bytes."""
        count = struct.unpack("<i", self.take(4))[0]
        if count < 0:
            self.fail(f"a negative length: {count}")
        return count

    def _numbers(self, text: bytes) -> np.ndarray:
        try:
            return encoding.parse_numbers(text.split())
        except ValueError as error:
            self.fail(f"not a number: {error}")

    def _integers(self, text: bytes) -> np.ndarray:
        """Return the integers of a text, int32[N]."""
        try:
            return np.array([int(word) for word in text.split()], np.int32)
        except (OverflowError, ValueError) as error:
            self.fail(f"not an integer of 32 bits: {error}")

    def _text_matrix(self) -> np.ndarray:
        self.expect("[")
        try:
            return encoding.parse_matrix(self.take_until(b"]"))
        except ValueError as error:
            self.fail(str(error))

    def _compressed_matrix(self, kind: str) -> np.ndarray:
        """Read what follows the token of a lossy compressed matrix."""
        low, span, rows, columns = struct.unpack("<ffii", self.take(16))
        if rows < 0 or columns < 0:
            self.fail(f"a matrix of {rows} rows and {columns} columns")
        raw = self.take(encoding.compressed_size(kind, rows, columns))
        return encoding.expand_compressed(kind, raw, (rows, columns), low, span)


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
        """Write a float in 64 bits."""
        if self.binary:
            self._stream.write(struct.pack("<bd", 8, value))
        else:
            self._text(f"{float(value)!r} ")

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
        kind, array = encoding.as_kaldi_floats(vector)
        if self.binary:
            self.write_token(f"{kind}V")
            self.write_int32(len(array))
            self._stream.write(array.tobytes())
        else:
            self._text(f" [ {encoding.format_floats(array)}]\n")

    def write_float_matrix(self, matrix: np.ndarray) -> None:
        """Write a matrix[R, C]: float64 as `DM`, every other type as `FM`."""
        kind, array = encoding.as_kaldi_floats(matrix)
        if self.binary:
            self.write_token(f"{kind}M")
            self.write_int32(array.shape[0])
            self.write_int32(array.shape[1])
            self._stream.write(array.tobytes())
        else:
            self._text(encoding.format_matrix(array))

    def write_symmetric_matrix(self, matrix: np.ndarray) -> None:
        """Write the lower triangle of a matrix[R, R], binary (Kaldi's `SpMatrix`)."""
        kind, array = encoding.as_kaldi_floats(matrix[np.tril_indices(len(matrix))])
        self.write_token(f"{kind}P")
        self.write_int32(len(matrix))
        self._stream.write(array.tobytes())


def _open_file(path: Path, mode: Literal["rb", "wb"]) -> IO[bytes]:
    """Open a file, packed if its name ends in `.gz` (then without a time stamp)."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(path, mode, mtime=0))
    return path.open(mode)


def read_archive(
    path: str | Path, read: Callable[[KaldiReader], Object]
) -> Generator[tuple[str, Object], None, None]:
    """Yield (key, object) of an archive, binary or text, `.gz` or not; streamed.

    Args:
        read: reads one object; `reader.binary` is set for each object by its mark.

    Raises:
        UserError: the archive is missing, truncated or garbled.
    """
    with closing(_entries(path, read)) as entries:
        yield from checked_entries(path, entries)


def _entries(
    path: str | Path, read: Callable[[KaldiReader], Object]
) -> Generator[tuple[str, Object], None, None]:
    """Yield (key, object) of an archive as it is."""
    with KaldiReader.open(path, binary=False) as reader:
        while not reader.at_end():
            key = reader.token()
            reader.binary = reader.take_binary_mark()
            yield key, read(reader)
            reader.binary = False


def read_int_vectors(path: str | Path) -> Generator[tuple[str, np.ndarray], None, None]:
    """Yield (key, int32[N]) of an archive of integer vectors, e.g. of alignments."""
    return read_archive(path, _read_int_vector)


def _read_int_vector(reader: KaldiReader) -> np.ndarray:
    """Return a vector of an archive: a line of integers, or with width bytes."""
    if not reader.binary:
        return reader.int_line()
    count = reader.int32()
    if count < 0:
        reader.fail(f"a negative length: {count}")
    items = np.frombuffer(reader.take(5 * count), _WIDTH_AND_INT)
    if np.any(items["width"] != 4):
        reader.fail("an integer that has not four bytes")
    return items["value"].astype(np.int32)


def write_int_vectors(
    path: str | Path, items: Iterable[tuple[str, Sequence[int] | np.ndarray]]
) -> None:
    """Write a binary archive of integer vectors atomically."""
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
    """Write a binary archive of matrices [R, C] atomically."""
    with atomic_output(path) as temporary, _open_file(temporary, "wb") as stream:
        for key, matrix in items:
            stream.write(key.encode() + b" ")
            KaldiWriter(stream).write_float_matrix(matrix)


def read_matrix(path: str | Path) -> np.ndarray:
    """Read a file that is one matrix, float32[R, C] or float64[R, C].

    Raises:
        UserError: the file is missing or garbled.
    """
    with KaldiReader.open(path) as reader:
        return reader.float_matrix()


def write_matrix(path: str | Path, matrix: np.ndarray) -> None:
    """Write a matrix as a binary file atomically."""
    with KaldiWriter.open(path) as writer:
        writer.write_float_matrix(matrix)
