"""Lhotse manifests as streams: read item by item, sorted on disk, written whole.

Lhotse's JSONL manifests are the only inner form of a corpus. A corpus folder holds
`recordings.jsonl.gz`, `supervisions.jsonl.gz`, `cuts.jsonl.gz` (one cut an utterance,
`cut.id == supervision.id`), each sorted by id, and `ledger.jsonl`. Paths of audio files
in them are absolute: manifests are read from many working directories (jobs of a
cluster, notebooks), and the audio seldom lies below them.

Public: `read_recordings`, `read_supervisions`, `read_cuts`, `ManifestWriter`, `Spool`.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.errors import UserError
from latflow.files import read_lines


class Item(Protocol):
    """What Lhotse's manifest items have in common."""

    id: str

    def to_dict(self) -> dict:
        """Turn into what JSON can hold."""
        ...


ItemT = TypeVar("ItemT", bound=Item)


def read_recordings(path: str | Path) -> Iterator[Recording]:
    """Yield the recordings of a JSONL manifest (`.gz` or plain)."""
    return _read(path, Recording.from_dict, "recording")


def read_supervisions(path: str | Path) -> Iterator[SupervisionSegment]:
    """Yield the supervisions of a JSONL manifest (`.gz` or plain)."""
    return _read(path, SupervisionSegment.from_dict, "supervision")


def read_cuts(path: str | Path) -> Iterator[MonoCut]:
    """Yield the cuts of a JSONL manifest (`.gz` or plain)."""
    return _read(path, _mono_cut, "cut")


def _mono_cut(data: dict[str, Any]) -> MonoCut:
    """Make a cut of its dictionary."""
    data.pop("type", None)
    return MonoCut.from_dict(data)


def _read(
    path: str | Path, make: Callable[[dict[str, Any]], ItemT], kind: str
) -> Iterator[ItemT]:
    """Yield items, with line numbers in errors.

    Raises:
        UserError: the file is missing, or a line is not an item of the kind.
    """
    for number, line in read_lines(path):
        if not line:
            continue
        try:
            yield make(json.loads(line))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise UserError(
                f"line {number} is not a Lhotse {kind} ({error})",
                file=path,
                remedy="write the manifest with Lhotse, as .jsonl or .jsonl.gz",
            ) from error


class ManifestWriter:
    """Writes items as JSON lines, compressed; equal items give equal bytes.

    Use as a context manager. The file's time stamp field is left empty (Lhotse's own
    writer puts the clock there, so that no two runs would agree).

    Args:
        path: `.jsonl.gz` file to write.
    """

    def __init__(self, path: str | Path) -> None:
        self._raw = Path(path).open("wb")  # noqa: SIM115 - closed in __exit__
        self._stream = gzip.GzipFile(
            filename="", mode="wb", fileobj=self._raw, mtime=0, compresslevel=6
        )

    def write(self, item: Item) -> None:
        """Append one item."""
        self._stream.write(_line(item))

    def __enter__(self) -> ManifestWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._stream.close()
        finally:
            self._raw.close()


class Spool(Generic[ItemT]):
    """Items on disk with random access by id; memory holds ids and offsets only.

    Use as a context manager; the file has no name and vanishes with the object.

    Args:
        folder: where the temporary file lies.
        make: makes an item of its dictionary.
    """

    def __init__(
        self, folder: str | Path, make: Callable[[dict[str, Any]], ItemT]
    ) -> None:
        self._stream = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._make = make
        self._offsets: dict[str, int] = {}
        self._end = 0

    def add(self, item: ItemT, *, file: str | Path | None = None) -> None:
        """Append one item.

        Raises:
            UserError: an item of that id is there already; names `file`.
        """
        if item.id in self._offsets:
            raise UserError(
                "this id occurs twice",
                file=file,
                utterance=item.id,
                remedy="give each recording and each utterance an id of its own",
            )
        self._offsets[item.id] = self._end
        self._stream.seek(self._end)
        self._end += self._stream.write(_line(item))

    def extend(self, items: Iterable[ItemT], *, file: str | Path | None = None) -> None:
        """Append items."""
        for item in items:
            self.add(item, file=file)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, item_id: str) -> ItemT:
        self._stream.seek(self._offsets[item_id])
        return self._make(json.loads(self._stream.readline()))

    def __iter__(self) -> Iterator[ItemT]:
        """Yield the items, sorted by id."""
        for item_id in sorted(self._offsets):
            yield self[item_id]

    def __enter__(self) -> Spool[ItemT]:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _line(item: Item) -> bytes:
    """One item as a line of JSON."""
    return (json.dumps(item.to_dict(), ensure_ascii=False) + "\n").encode()
