"""Files that are whole or absent: atomic writes, strict reads.

`atomic_output` and `atomic_directory` write beside the target and rename at the end,
when all is on the disk: a killed job, a full disk or a power cut never leaves half an
output that a later run would trust.

All text is read by `open_text` and `read_lines`, with the same rules: UTF-8, or UTF-16
and UTF-32 with a byte order mark; a mark at the beginning counts for nothing; lines end
with LF, CRLF or CR. Fields are parted by any of Unicode's blanks (`str.split`).
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import re
import shutil
import stat
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import yaml

from latflow.errors import UserError

ItemT = TypeVar("ItemT")
# Names that are being written, here and in scratch folders of stages.
_NUMPY_DISK_FULL = re.compile(r"\d+ requested and \d+ written")
_TEMPORARY = re.compile(r"\.(\d+\.)?tmp\.")
_UTF8_MARK = codecs.BOM_UTF8
# Marks of encodings; those of UTF-32 first, since one begins like one of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_OPENERS = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
# What file systems say that have nothing like it.
_NO_FSYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF}
_LFS = b"version https://git-lfs"
_HEAD = 1 << 16  # bytes looked at for the encoding and the ends of lines
_STREAMS = ("/dev/stdout", "/dev/stderr")
_PART = 1 << 20  # characters converted at once
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
    writers that choose a format by name behave. On any error it is removed. A device, a
    pipe and an open file (`/dev/null`, `/dev/stdout`) stay, and get what was written.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    target = Path(path)
    if not target.name:
        raise UserError("is no name of a file", file=target, remedy="name a file")
    if _is_no_place(target):
        with writing(target), tempfile.TemporaryDirectory(prefix="latflow-") as folder:
            yield (written := Path(folder, target.name))
            with written.open("rb") as source, target.open("ab") as stream:
                shutil.copyfileobj(source, stream)
        return
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{os.getpid()}.tmp.{target.name}")
        try:
            yield temporary
            _on_disk(temporary)
            os.replace(temporary, target)
            _on_disk(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block ends without error.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    target = Path(path)
    if target.is_symlink():
        raise UserError("is a link", file=path, remedy="name the folder itself")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".tmp.", dir=target.parent))
        temporary.chmod(0o755)
        try:
            yield temporary
            for parent, _, names in os.walk(temporary):
                for inner in (*names, ""):
                    _on_disk(Path(parent, inner))
            if target.exists():
                shutil.rmtree(target)
            os.replace(temporary, target)
            _on_disk(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_no_place(target: Path) -> bool:
    """Tell whether a name is that of a device, a pipe or an open file."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    folder = os.path.realpath(target.parent)
    is_open = folder.startswith(("/proc/", "/dev/fd")) or str(target) in _STREAMS
    return is_open or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


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


def _on_disk(path: Path) -> None:
    """Have a file or folder written to the disk, as a power cut would leave it.

    Else a name may be there before what it names.
    """
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return
    try:
        opened = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder that may be written, not read
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(opened)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into one clear line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_full_disk(error):
            raise UserError(
                "no space left on the disk while writing",
                file=target,
                remedy="free space there, or move the results folder to a larger disk",
            ) from error
        if isinstance(error, OSError) and error.errno in {errno.EACCES, errno.EROFS}:
            raise UserError(
                "may not be written",
                file=target,
                remedy="check the permissions of the folder",
            ) from error
        raise


def is_full_disk(error: BaseException | None) -> bool:
    """Tell whether a full disk is why something failed, in libraries' words, too."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        text = str(error)  # of safetensors, HDF5, libsndfile; numpy tells of bytes
        if "os error 28" in text or os.strerror(errno.ENOSPC) in text:
            return True
        if _NUMPY_DISK_FULL.search(text):
            return True
        error = error.__cause__ or error.__context__
    return False


def require_file(path: str | Path, remedy: str = "check the path") -> None:
    """Refuse a path that is no file.

    Raises:
        UserError: it is not there, or is a folder.
    """
    if not Path(path).is_file():
        what = "is a folder, not a file" if Path(path).is_dir() else "no such file"
        raise UserError(what, file=path, remedy=remedy)


@contextmanager
def open_text(path: str | Path) -> Iterator[BinaryIO]:
    """Open a text file of any encoding that its first bytes tell, for reading.

    Args:
        path: a text file; read through gzip if its name ends in `.gz`, and through
            gzip, bzip2 or xz if its first bytes tell.

    Yields:
        The text as UTF-8 without byte order mark, lines ended by LF or CRLF, at its
        beginning; positions of `tell` serve `seek`. UTF-8 that is not valid is left to
        the reader.

    Raises:
        UserError: the file is missing, was not fetched by Git LFS, is no whole
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


def check_fetched(path: Path) -> None:
    """Refuse what Git leaves in the place of a large file.

    Raises:
        UserError: it is that.
    """
    with path.open("rb") as stream:
        if stream.read(len(_LFS)) == _LFS:
            raise UserError(
                "stands for a file of Git LFS that was not fetched",
                file=path,
                remedy="run git lfs pull in its folder",
            )


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
        UserError: the file is missing, was not fetched, or has no such object.
    """
    with reading(path, f"not {what}", remedy):
        check_fetched(Path(path))
        values = json.loads(Path(path).read_bytes())
        if not isinstance(values, dict):
            raise TypeError("no JSON object")
        return make(values)


def read_yaml(path: str | Path) -> Any:
    """Return what a YAML (or JSON) file holds.

    Raises:
        UserError: the file is missing or no YAML, or a mapping has a key twice; names
            the lines.
    """
    text = "".join(f"{line}\n" for _, line in read_lines(path))
    try:
        return yaml.load(text, _UniqueKeys)  # noqa: S506 - made of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        what = " ".join(filter(None, (error.context, error.problem)))
        raise UserError(
            f"{where}not readable as YAML: {what}",
            file=path,
            remedy="indent by blanks, not tabs; quote what has `: `, `#` or begins "
            "with a mark",
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"not readable as YAML: {what}", file=path) from error


_MOST_NODES, _MOST_COPIES = 1_000_000, 10  # of YAML with aliases, written out


class _UniqueKeys(yaml.SafeLoader):
    """Reads YAML; refuses two equal keys of a mapping, of which the last would win.

    Aliases (`*name`) that have no end are refused, too, or that would make a short file
    large.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Read the document; see `yaml.SafeLoader`."""
        node, sizes = super().get_single_node(), {}
        if node is not None:
            size = _written_out(node, sizes)
            if size > max(_MOST_NODES, _MOST_COPIES * len(sizes)):
                raise yaml.YAMLError(f"its aliases stand for {size:.0e} values")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Make a mapping; see `yaml.SafeLoader`."""
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.YAMLError(
                    f"lines {seen[key.value]} and {line}: the key {key.value} stands "
                    "twice"
                )
            seen[key.value] = line
        return super().construct_mapping(node, deep)


def _written_out(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Return how many values a node has, those of aliases counted at each of them.

    Args:
        node: of a document.
        sizes: the same of known nodes, by `id`; None for those that it is part of.
    """
    if id(node) in sizes:
        known = sizes[id(node)]
        if known is None:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"line {line}: an alias stands for what it is part of")
        return known
    sizes[id(node)] = None
    parts = [node.value] if isinstance(node, yaml.SequenceNode) else []
    parts = node.value if isinstance(node, yaml.MappingNode) else parts
    size = 1 + sum(_written_out(one, sizes) for part in parts for one in part)
    sizes[id(node)] = size
    return size


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


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def size_text(num_bytes: float) -> str:
    """Return a number of bytes for people: `12.6 MB`; `unknown` for NaN."""
    if math.isnan(num_bytes):
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
