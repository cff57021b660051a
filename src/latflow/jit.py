"""Numba's compiler, with machine code that is kept only where it is whole.

Numba keeps what it has compiled beside the source, or else in `NUMBA_CACHE_DIR` or the
user's cache folder. Its files have no checksums: one that is cut ends in a traceback,
one with a wrong byte in anything. Those written here have one, and name the signature
that they are of (two processes that store at the same moment can mix them up). What is
damaged, or another version's, another processor's or another source's, is compiled
again. Where nothing can be written, everything still runs, and a warning says so.

What an installation that cannot be written to has beside its sources is used.
"""

from __future__ import annotations

import logging
import os
import pickle
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
)
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

log = logging.getLogger(__name__)
_CHECKSUM = 4  # bytes, at the end
_Result = TypeVar("_Result")
Index = tuple[Any, dict[Any, str]]  # stamp of the source; signature: name of its file


def njit(
    *, cache: bool, allocates: bool = True, **options: Any
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Return a decorator that compiles a function when it is called.

    Args:
        cache: keep the machine code.
        allocates: the function makes arrays, or calls one that does. Without, Numba
            counts no references to the arrays that it is given, which takes most of the
            time of short functions that are given tuples of many.
        options: of `numba.njit`.
    """
    if not allocates:
        options["_nrt"] = False

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        kernel = numba.njit(**options)(function)
        if cache and isinstance(kernel, Dispatcher):  # else Numba is switched off
            cast("Any", kernel)._cache = KernelCache(function)
        return kernel

    return decorate


def read_index(path: Path) -> Index | None:
    """Read which signatures of a function are kept.

    Returns:
        None if there is no such file, or it is damaged or of another version.

    Source: Numba `core/caching.py:IndexDataCacheFile`, for the format.
    """
    try:
        with path.open("rb") as file:
            if pickle.load(file) != numba.__version__:  # noqa: S301 - our own cache
                return None
            return _unpacked(file.read())
    except Exception:  # noqa: BLE001 - damaged pickles raise anything
        return None


def _unpacked(raw: bytes) -> Any:
    """Return what `_File` has packed; None if it is damaged."""
    body, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
    if zlib.crc32(body).to_bytes(_CHECKSUM, "little") != checksum:
        return None
    try:
        return pickle.loads(body)  # noqa: S301 - our own cache
    except Exception:  # noqa: BLE001 - it may name classes that are gone
        return None


class _File(IndexDataCacheFile):
    """Files of a function in a folder; each ends with a checksum."""

    def __init__(self, folder: str, name: str, stamp: Any) -> None:
        super().__init__(folder, name, stamp)
        self._path, self._stamp = Path(folder, f"{name}.nbi"), stamp

    def save(self, key: Any, data: Any) -> None:
        """Save machine code with its signature."""
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        """Load the machine code of a signature; None if it is not there."""
        name = self._load_index().get(key)
        try:
            found = name and _unpacked((self._path.parent / name).read_bytes())
        except OSError:
            return None
        return found[1] if found and found[0] == key else None

    def _load_index(self) -> dict[Any, str]:
        stamp, overloads = read_index(self._path) or (None, {})
        return overloads if stamp == self._stamp else {}

    def _dump(self, obj: Any) -> bytes:
        body = dumps(obj)
        return body + zlib.crc32(body).to_bytes(_CHECKSUM, "little")


class _Installed(InTreeCacheLocator):
    """The folder beside the source, whether it can be written to or not."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Installed | None:
        """Return it, where there is a file of the source."""
        return cls(py_func, py_file) if os.path.exists(py_file) else None


class _Places(CompileResultCacheImpl):
    """Numba's folders, and the installed one where none of them can be written to."""

    _locator_classes = (*CompileResultCacheImpl._locator_classes, _Installed)


class KernelCache(FunctionCache):
    """The machine code of a function, kept in files.

    Args:
        function: its source.
    """

    _impl_class = _Places

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        of = self._impl.filename_base, self._impl.locator.get_source_stamp()
        self._cache_file = _File(self._cache_path, *of)
        beside = Path(function.__code__.co_filename).parent / "__pycache__"
        self._installed = _File(str(beside), *of)

    def has(self, signature: Any, codegen: Any) -> bool:
        """Return whether the machine code of a signature is kept."""
        key = self._index_key(signature, codegen)
        files = self._cache_file, self._installed
        return any(key in file._load_index() for file in files)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load what is kept of a signature; None if it must be compiled."""
        found = super().load_overload(sig, target_context)
        if found is None and self._enabled:
            key = self._index_key(sig, target_context.codegen())
            data = self._installed.load(key)
            found = data and self._impl.rebuild(target_context, data)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code of a signature; a warning says where that fails."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn(str(self._cache_path), error.strerror or str(error))


@cache
def _warn(folder: str, why: str) -> None:
    """Warn once that a folder cannot hold a cache."""
    log.warning(
        "%s: compiled kernels cannot be kept (%s): each process compiles them again; "
        "set NUMBA_CACHE_DIR to a folder that can be written to",
        *(folder, why),
    )
