"""Finished results, named by what they depend on, for other experiments to take.

An entry is a folder named by a key: `entry.json`, and the files of one job below
`files/`, as they are below `results/<experiment>/`. They are hard links: one copy on
the disk, whichever experiment goes first. Where links can't be had (another disk, such
as a team's) they are copies, with the same times.

A file that was changed in place is noticed by its size and time; its entry is dropped.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from latflow.files import write_json
from latflow.options import Options

# Files that jobs and people write to later on: copied, not linked.
_COPIED = ("benchmarks", "logs", "provenance")
_DAY = 24 * 3600


class Entry(Options):
    """The files that one job has written."""

    rule: str
    """Rule of the job."""
    experiment: str
    """Name of the experiment that ran it."""
    files: dict[str, tuple[int, int]]
    """Size in bytes and time of modification in ns of each file, by its path below the
    folder of an experiment."""
    max_skipped_fraction: float | None = None
    """Share of utterances that the job was allowed to skip; None: it skips none."""


class ResultCache:
    """A folder of results that experiments share.

    Args:
        folder: of the entries; made when there is something to keep.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Entry | None:
        """Return an entry, or None if there is none whose files are as they were."""
        entry = self._read(key)
        return entry if entry is not None and not self._changed(key, entry) else None

    def keep(
        self, key: str, entry: Entry, results: Path, *, replace: bool = False
    ) -> Entry:
        """Keep the files of a job, unless an entry of that key is there already.

        Then the experiment's files become those of the entry: what is newer than what
        depends on it would be a reason for Snakemake to run a job again.

        Args:
            key: what the files depend on.
            entry: their names.
            results: folder of the experiment.
            replace: keep these in any case.

        Returns:
            The entry that is kept.

        Raises:
            OSError: the folder cannot be written.
        """
        kept = None if replace else self.find(key)
        if kept is not None:
            if kept.files != entry.files:
                self.take(key, kept, results)
            return kept
        self.folder.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".tmp.", dir=self.folder))
        try:
            for name in entry.files:
                _link(results / name, place / "files" / name, name)
            write_json(place / "entry.json", entry.values())
            self.drop(key)
            # Where another run was faster its entry is as good.
            with suppress(OSError):
                place.rename(self.folder / key)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return entry

    def take(self, key: str, entry: Entry, results: Path) -> None:
        """Put the files of an entry where an experiment has them.

        Raises:
            OSError: an entry's file is gone, or the experiment's folder can't be
                written.
        """
        place = self.folder / key
        for name in entry.files:
            _link(place / "files" / name, results / name, name)
        with suppress(OSError):
            os.utime(place / "entry.json")  # when it was used last

    def drop(self, key: str) -> None:
        """Remove an entry, if it is there."""
        shutil.rmtree(self.folder / key, ignore_errors=True)

    def entries(self) -> list[str]:
        """Return the keys of all entries, damaged ones included."""
        with suppress(FileNotFoundError):
            found = (path for path in self.folder.iterdir() if path.is_dir())
            return sorted(path.name for path in found if path.name[0] != ".")
        return []

    def prune(self, days: float) -> Iterator[tuple[str, int]]:
        """Remove entries that no experiment has or has used lately, and damaged ones.

        Args:
            days: since an entry was kept or taken.

        Yields:
            Key and bytes of each entry that was removed.
        """
        oldest = time.time() - days * _DAY
        for left in self.folder.glob(".tmp.*"):  # by a killed run
            if left.stat().st_mtime < time.time() - _DAY:
                shutil.rmtree(left, ignore_errors=True)
        for key in self.entries():
            entry = self.find(key)
            if entry is not None and (
                self.is_held(key, entry) or self.last_use(key) > oldest
            ):
                continue
            size = 0 if entry is None else self.size(entry)
            self.drop(key)
            yield key, size

    def last_use(self, key: str) -> float:
        """Return when an entry was kept or taken last, in seconds since 1970."""
        with suppress(OSError):
            return (self.folder / key / "entry.json").stat().st_mtime
        return 0.0

    def is_held(self, key: str, entry: Entry) -> bool:
        """Return whether an experiment has links to files of an entry."""
        files = self.folder / key / "files"
        with suppress(OSError):
            return any((files / name).stat().st_nlink > 1 for name in entry.files)
        return False

    @staticmethod
    def size(entry: Entry) -> int:
        """Return the bytes of an entry's files."""
        return sum(size for size, _ in entry.files.values())

    def changed(self, key: str) -> list[str]:
        """Return the files of an entry that are gone or were changed in place.

        `["entry.json"]` if the entry itself can't be read.
        """
        entry = self._read(key)
        return ["entry.json"] if entry is None else self._changed(key, entry)

    def _read(self, key: str) -> Entry | None:
        """Return what an entry says of itself; None if that can't be read."""
        try:
            text = (self.folder / key / "entry.json").read_bytes()
            return Entry.model_validate_json(text)
        except (OSError, ValidationError):
            return None

    def _changed(self, key: str, entry: Entry) -> list[str]:
        """Return the names of files that are not as they were."""
        files = self.folder / key / "files"
        return [n for n, facts in entry.files.items() if file_facts(files / n) != facts]


def file_facts(path: Path) -> tuple[int, int] | None:
    """Return size in bytes and time of modification in ns of a file; None without."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def facts_of(results: Path, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return sizes and times of files below a folder; those that are not there lack."""
    found = ((name, file_facts(results / name)) for name in sorted(names))
    return {name: facts for name, facts in found if facts is not None}


def _link(source: Path, target: Path, name: str) -> None:
    """Give a file another name, replacing what has it.

    Args:
        source: the file.
        target: the other name.
        name: its path below an experiment's folder.

    Raises:
        OSError: the source is gone, or the target can't be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(source):
        return
    temporary = target.with_name(f".{os.getpid()}.tmp.{target.name}")
    try:
        if name.partition("/")[0] in _COPIED or not _linked(source, temporary):
            shutil.copy2(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _linked(source: Path, target: Path) -> bool:
    """Return whether a file has another name now; not on another disk."""
    with suppress(OSError):
        target.hardlink_to(source)
        return True
    return False
