"""Files that are whole or absent: atomic writes, strict reads.

`atomic_output` and `atomic_directory` write beside the target and rename at the end,
so a killed job or a full disk never leaves half an output that a later run would trust.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from latflow.errors import UserError

ItemT = TypeVar("ItemT")
# Names that are being written, here and in scratch folders of stages.
_TEMPORARY = re.compile(r"\.(\d+\.)?tmp\.")
# What JSON, numpy and zipfile raise on damaged files, and those who use what they read.
DAMAGED = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError),
    *(MemoryError, OSError, RuntimeError, SyntaxError, TypeError, ValueError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


@contextmanager
def atomic_output(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` when the block ends without error.

    The temporary file keeps the target's suffixes (`.jsonl.gz` stays `.jsonl.gz`), so
    writers that choose a format by name behave. On any error it is removed.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    target = Path(path)
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{os.getpid()}.tmp.{target.name}")
        try:
            yield temporary
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block ends without error.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    target = Path(path)
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".tmp.", dir=target.parent))
        temporary.chmod(0o755)
        try:
            yield temporary
            if target.exists():
                shutil.rmtree(target)
            os.replace(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a file as UTF-8, whole or not at all."""
    with atomic_output(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def remove_leftovers(folder: str | Path) -> list[Path]:
    """Remove what killed jobs left half written. None may be running in this folder.

    Returns:
        The files and folders that were there, at any depth.
    """
    found = []
    for parent, folders, files in os.walk(folder):
        names = [name for name in (*folders, *files) if _TEMPORARY.match(name)]
        folders[:] = [name for name in folders if name not in names]
        found += [Path(parent, name) for name in names]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return found


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise UserError(
                "no space left on the disk while writing",
                file=target,
                remedy="free space there, or move the results folder to a larger disk; "
                "the unfinished file was removed",
            ) from error
        if error.errno in {errno.EACCES, errno.EROFS}:
            raise UserError(
                "may not be written",
                file=target,
                remedy="check the permissions of the folder",
            ) from error
        raise


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 text file.

    Args:
        path: a text file; read through gzip if its name ends in `.gz`.

    Raises:
        UserError: the file is missing or no whole gzip file, or a line is not UTF-8
            (names the line).
    """
    source = Path(path)
    if not source.is_file():
        raise UserError("no such file", file=source, remedy="check the path")
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rb") as stream:
        for number, raw in enumerate(_raw_lines(stream, source), start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"line {number} is not UTF-8 (byte {error.start + 1})",
                    file=source,
                    remedy="convert the file to UTF-8, e.g. with iconv",
                ) from error
            yield number, line.rstrip("\r\n")


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
            if not isinstance(values, dict):
                raise TypeError("no JSON object")
            yield make(values)
        except DAMAGED as e:
            raise UserError(
                f"line {number} is not {what} ({e})", file=path, remedy=remedy
            ) from e


def read_json(
    path: str | Path, make: Callable[[dict[str, Any]], ItemT], what: str, remedy: str
) -> ItemT:
    """Return what is made of a file with a JSON object.

    Args:
        path: of the file.
        make: makes it of the object.
        what: it is, for messages.
        remedy: likewise.

    Raises:
        UserError: the file is missing, or has no such object.
    """
    with reading(path, f"not {what}", remedy):
        values = json.loads(Path(path).read_bytes())
        if not isinstance(values, dict):
            raise TypeError("no JSON object")
        return make(values)


@contextmanager
def reading(
    path: str | Path, what: str, remedy: str, utterance: str | None = None
) -> Iterator[None]:
    """Make what is raised on a damaged file a UserError.

    Args:
        path: of the file.
        what: is wrong, for the message.
        remedy: likewise.
        utterance: that is read, likewise.
    """
    try:
        yield
    except DAMAGED as error:
        told = " ".join(str(error).split())
        raise UserError(
            f"{what} ({told})", file=path, utterance=utterance, remedy=remedy
        ) from error


def _raw_lines(stream: Iterable[bytes], source: Path) -> Iterator[bytes]:
    """Yield the lines of an open file, which may turn out not to be gzip's."""
    try:
        yield from stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"is not a whole gzip file ({error})",
            file=source,
            remedy="make or copy it again",
        ) from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
