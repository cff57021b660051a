"""Digests of the contents of files, which are read only when they may have changed."""

from __future__ import annotations

import gzip
import json
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import atomic_output, file_digest

_KEPT = Path(".snakemake/latflow-contents.json.gz")
_LISTED = Path(".snakemake/latflow-folders.json.gz")
_MOST_LISTINGS = 3  # of a folder: this run's, and what earlier results were made of
# Within so many ns a file may change again and keep its time.
_TICK = 2 * 10**9


class Contents:
    """Gives digests of files, which are kept beside what Snakemake keeps of a run.

    A digest holds as long as size, time and inode of its file are the same.

    Args:
        path: they are kept in; where its folder is not, they are not.
    """

    def __init__(self, path: Path = _KEPT) -> None:
        self._path = path
        self._is_new = False
        self._kept = self._load()

    def __call__(self, path: Path, facts: os.stat_result) -> str:
        """Return the digest of a file.

        Args:
            path: of it.
            facts: what the system reports of it.

        Raises:
            OSError: it cannot be read.
        """
        name, now = str(path), [facts.st_size, facts.st_mtime_ns, facts.st_ino]
        kept = self._kept.get(name)
        if kept and kept[:3] == now:
            return str(kept[3])
        begun = time.time_ns()
        found = file_digest(path)[:16]
        if facts.st_mtime_ns < begun - _TICK:
            self._kept[name] = [*now, found]
            self._is_new = True
        return found

    def _load(self) -> dict[str, list]:
        """Return the digests that are kept."""
        return _load(self._path)

    def save(self) -> None:
        """Keep new digests for the next run; where that may not be, do without."""
        if not (self._is_new and self._path.parent.is_dir()):
            return
        # Others of this process, or of a run beside it, have kept theirs meanwhile.
        self._kept = {**self._load(), **self._kept}
        _save(self._path, self._kept)


class Listings:
    """The files that folders had, so that a reason to run again can name one.

    Args:
        path: they are kept in; where its folder is not, they are not.
    """

    def __init__(self, path: Path = _LISTED) -> None:
        self._path = path

    def keep(self, folder: str, digest: str, files: Mapping[str, str]) -> None:
        """Keep the files of a folder, and what each is known by, under a digest."""
        if not self._path.parent.is_dir():
            return
        kept = _load(self._path)
        listings = kept.setdefault(folder, {})
        if digest in listings:
            return
        listings[digest] = dict(files)
        for oldest in list(listings)[:-_MOST_LISTINGS]:
            del listings[oldest]
        _save(self._path, kept)

    def differences(self, folder: str, before: str, now: str) -> list[str]:
        """Return the files that differ between two digests, where both are kept."""
        listings = _load(self._path).get(folder, {})
        old, new = listings.get(before), listings.get(now)
        if old is None or new is None:
            return []
        return sorted(n for n in old.keys() | new.keys() if old.get(n) != new.get(n))


def _load(path: Path) -> dict[str, Any]:
    """Return what is kept in a file; nothing where it can't be read."""
    try:
        return dict(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, ValueError, TypeError, EOFError, zlib.error):
        return {}


def _save(path: Path, kept: Mapping[str, Any]) -> None:
    """Keep something in a file; where that may not be, do without."""
    packed = gzip.compress(json.dumps(kept).encode(), compresslevel=1)
    try:
        with atomic_output(path) as temporary:
            temporary.write_bytes(packed)
    except (OSError, UserError):
        return
