"""Digests of the contents of files, which are read only when they may have changed."""

from __future__ import annotations

import gzip
import json
import os
import time
import zlib
from pathlib import Path

from latflow.errors import UserError
from latflow.files import atomic_output, file_digest

_KEPT = Path(".snakemake/latflow-contents.json.gz")
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
            facts: what the system tells of it.

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
        """Return the digests that are kept; none where they can't be read."""
        try:
            return dict(json.loads(gzip.decompress(self._path.read_bytes())))
        except (OSError, ValueError, TypeError, EOFError, zlib.error):
            return {}

    def save(self) -> None:
        """Keep new digests for the next run; where that may not be, do without."""
        if not (self._is_new and self._path.parent.is_dir()):
            return
        # Others of this process, or of a run beside it, have kept theirs meanwhile.
        self._kept = {**self._load(), **self._kept}
        packed = gzip.compress(json.dumps(self._kept).encode(), compresslevel=1)
        try:
            with atomic_output(self._path) as temporary:
                temporary.write_bytes(packed)
        except (OSError, UserError):
            return
