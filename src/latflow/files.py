"""Files that are whole or absent: atomic writes; clear lines on damaged ones.

`atomic_output` and `atomic_directory` write beside the target and rename at the end,
when all is on the disk: a killed job, a full disk or a power cut never leaves half an
output that a later run would trust.
"""

from __future__ import annotations

import errno
import hashlib
import json
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
from typing import Any, TypeVar

from latflow.errors import UserError

ItemT = TypeVar("ItemT")
# Names that are being written, here and in scratch folders of stages.
_NUMPY_DISK_FULL = re.compile(r"\d+ requested and \d+ written")
_TEMPORARY = re.compile(r"\.(\d+\.)?tmp\.")
# What file systems say that have nothing like it.
_NO_FSYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF}
_LFS = b"version https://git-lfs"
_STREAMS = ("/dev/stdout", "/dev/stderr")
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
        raise UserError("is not a name of a file", file=target, remedy="name a file")
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
    """Return whether a name is that of a device, a pipe or an open file."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    folder = os.path.realpath(target.parent)
    is_open = folder.startswith(("/proc/", "/dev/fd")) or str(target) in _STREAMS
    return is_open or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_text(path: str | Path, text: str) -> None:
    """Write a file as UTF-8 atomically."""
    with atomic_output(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON atomically."""
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
    """Sync a file or folder to the disk, so that it survives a power cut.

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
    """Return whether a full disk is why something failed, in libraries' words, too."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        text = str(error)  # of safetensors, HDF5, libsndfile; numpy counts bytes
        if "os error 28" in text or os.strerror(errno.ENOSPC) in text:
            return True
        if _NUMPY_DISK_FULL.search(text):
            return True
        error = error.__cause__ or error.__context__
    return False


def require_file(path: str | Path, remedy: str = "check the path") -> None:
    """Refuse a path that is not a file.

    Raises:
        UserError: it is not there, or is a folder.
    """
    if not Path(path).is_file():
        what = "is a folder, not a file" if Path(path).is_dir() else "no such file"
        raise UserError(what, file=path, remedy=remedy)


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
        reason = " ".join(str(error).split())
        raise UserError(
            f"{what} ({reason})", file=path, utterance=utterance, remedy=remedy
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
