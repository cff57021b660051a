"""Text files of any usual encoding or compression, read by one set of rules.

UTF-8, or UTF-16 and UTF-32 with a byte order mark; plain, or through gzip, bzip2 or xz.
A mark at the beginning counts for nothing; lines end with LF, CRLF or CR. Fields are
parted by any of Unicode's blanks (`str.split`).
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

from latflow.errors import UserError
from latflow.files import DAMAGED, check_fetched, require_file

ItemT = TypeVar("ItemT")
_UTF8_MARK = codecs.BOM_UTF8
# Marks of encodings; those of UTF-32 first, since one begins like one of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_OPENERS = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_HEAD = 1 << 16  # bytes looked at for the encoding and the ends of lines
_PART = 1 << 20  # characters converted at once


@contextmanager
def open_text(path: str | Path) -> Iterator[BinaryIO]:
    """Open a text file for reading, in the encoding that its first bytes show.

    Args:
        path: a text file; read through gzip if its name ends in `.gz`, and through
            gzip, bzip2 or xz by its first bytes.

    Yields:
        The text as UTF-8 without byte order mark, lines ended by LF or CRLF, at its
        beginning; positions of `tell` serve `seek`. UTF-8 that is not valid is left to
        the reader.

    Raises:
        UserError: the file is missing, was not fetched by Git LFS, is not a whole
            compressed file, or no whole UTF-16 or UTF-32 though it begins as such.
    """
    source = Path(path)
    require_file(source)
    check_fetched(source)
    kind = _compression(source)
    opener: Any = _OPENERS[kind] if kind else open
    with opener(source, "rb") as stream, _whole(source, kind):
        head = stream.read(_HEAD)
        stream.seek(0)
        encoding = next((name for mark, name in _MARKS if head.startswith(mark)), None)
        if encoding is None and (b"\r" not in head or b"\n" in head):
            stream.seek(len(_UTF8_MARK) if head.startswith(_UTF8_MARK) else 0)
            yield stream
            return
        with tempfile.TemporaryFile() as converted:
            _to_utf8(stream, encoding, converted, source)
            yield cast("BinaryIO", converted)


def _compression(source: Path) -> str | None:
    """Return what a file is compressed by, a name of `_OPENERS`; None for nothing."""
    with source.open("rb") as stream:
        head = stream.read(6)
    if source.suffix == ".gz" or head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"BZh"):
        return "bzip2"
    return "xz" if head == b"\xfd7zXZ\0" else None


def _to_utf8(
    stream: BinaryIO, encoding: str | None, converted: IO[bytes], source: Path
) -> None:
    """Write a text as UTF-8 with LF at the ends of lines, and go to its beginning."""
    errors = "strict" if encoding else "surrogateescape"
    reader = io.TextIOWrapper(stream, encoding or "utf-8-sig", errors)
    try:
        while part := reader.read(_PART):
            converted.write(part.encode("utf-8", "surrogateescape"))
    except UnicodeError as error:
        raise UserError(
            f"is not the {(encoding or 'UTF-8').upper()} that it begins as",
            file=source,
            remedy="convert the file to UTF-8, e.g. with iconv",
        ) from error
    finally:
        reader.detach()
    converted.seek(0)


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a text file.

    Args:
        path: a text file, see `open_text`.

    Raises:
        UserError: see `open_text`; a line is not UTF-8 (names the line).
    """
    with open_text(path) as stream:
        for number, raw in enumerate(stream, start=1):
            yield number, decode_line(raw, number, path).rstrip("\r\n")


def decode_line(
    raw: bytes, number: int, path: str | Path, utterance: str | None = None
) -> str:
    """Return a line of a file as text.

    Args:
        raw: the line.
        number: of the line, from 1, for messages.
        path: of the file, likewise.
        utterance: that the line is about, likewise.

    Raises:
        UserError: it is not UTF-8, or has a zero byte.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"line {number} is not UTF-8 (byte {error.start + 1})",
            file=path,
            utterance=utterance,
            remedy="convert the file to UTF-8, e.g. with iconv",
        ) from error
    if "\0" in text:
        raise UserError(
            f"line {number} has a zero byte (byte {raw.index(0) + 1})",
            file=path,
            utterance=utterance,
            remedy="is it a text? convert UTF-16 to UTF-8, e.g. with iconv",
        )
    return text


@contextmanager
def _whole(source: Path, compression: str | None) -> Iterator[None]:
    """Make what is raised on a damaged compressed file a UserError."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the data's
        raise UserError(
            f"is not a whole {compression} file ({error})",
            file=source,
            remedy="make or copy it again",
        ) from error


def read_json_lines(
    path: str | Path, make: Callable[[dict[str, Any]], ItemT], what: str, remedy: str
) -> Iterator[ItemT]:
    """Yield the items of a file with a JSON object a line (`.gz` or plain).

    Args:
        path: of the file; empty lines are passed over.
        make: makes an item of an object.
        what: an item is, with its article, for messages.
        remedy: likewise.

    Raises:
        UserError: as of `read_lines`, or a line is no such item (names the line).
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if r"\ud" in line.lower():  # half of a character, which no file can hold
                json.dumps(values, ensure_ascii=False).encode()
            if not isinstance(values, dict):
                raise TypeError("no JSON object")
            yield make(values)
        except DAMAGED as e:
            raise UserError(
                f"line {number} is not {what} ({e})", file=path, remedy=remedy
            ) from e
