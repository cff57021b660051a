"""Lhotse manifests as lines of JSON, for stages that do without Lhotse.

Importing Lhotse imports torch, which takes longer than a short job. What only divides
manifests, or looks up a field, reads and writes the JSON.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from latflow.corpus.manifest_fields import cut_fields
from latflow.errors import UserError
from latflow.files import reading, require_file
from latflow.text_files import read_json_lines

REMEDY = "run the prepare_corpus stage again"


class Item(Protocol):
    """Describe the part that Lhotse's manifest items have in common."""

    @property
    def id(self) -> str:
        """Name of the item."""
        ...

    def to_dict(self) -> dict:
        """Turn into what JSON can hold."""
        ...


ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True)
class JsonItem:
    """Hold an item of a manifest as JSON has it."""

    id: str
    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Turn into what JSON can hold."""
        return self.values


@dataclass(frozen=True)
class CutLine(JsonItem):
    """Hold a cut of one channel as JSON has it, with the fields that stages ask for.

    Attributes:
        speaker: its id where none is known, as in Kaldi.
        text: empty without one.
    """

    speaker: str
    text: str


# Types of fields that stages compute with, where an item has them.
_TYPES = {
    "start": (float, int, type(None)),
    "duration": (float, int, type(None)),
    "text": (str, type(None)),
    "speaker": (str, type(None)),
    "recording_id": (str, type(None)),
}


def read_items(path: str | Path, *fields: str) -> Iterator[JsonItem]:
    """Yield the items of a JSONL manifest (`.gz` or plain), as they stand there.

    Args:
        path: of the manifest.
        fields: that each item must have, besides `id`.

    Raises:
        UserError: the file is missing, or a line is no such item.
    """

    def make(values: dict[str, Any]) -> JsonItem:
        for field in fields:
            values[field]
        for field, kinds in _TYPES.items():
            if type(values.get(field)) not in kinds:
                raise TypeError(f"{field} is {str(values[field])[:40]!r}")
        return JsonItem(str(values["id"]), values)

    return read_json_lines(path, make, "an item of a Lhotse manifest", REMEDY)


def read_cut_lines(path: str | Path) -> Iterator[CutLine]:
    """Yield the cuts of a `cuts.jsonl.gz`, as they stand there.

    Raises:
        UserError: the file is missing or garbled, an id comes twice or out of order, or
            a cut is not one channel of one recording.
    """
    require_file(path, REMEDY)
    last = ""
    for item in read_items(path, "start", "duration"):
        with reading(path, "is not a Lhotse cut", REMEDY, item.id):
            cut_fields(item.values)
        channel = item.values.get("channel", 0)
        if item.values.get("type") != "MonoCut" or not isinstance(channel, int):
            raise UserError(
                "is not a cut of one channel of one recording",
                file=path,
                utterance=item.id,
                remedy="cut the channel that is to be recognized",
            )
        if item.id <= last:
            twice = "comes twice" if item.id == last else f"comes after {last}"
            raise UserError(twice, file=path, utterance=item.id, remedy=REMEDY)
        last = item.id
        supervision = (item.values.get("supervisions") or [{}])[0]
        speaker, text = (
            supervision.get("speaker") or item.id,
            supervision.get("text") or "",
        )
        yield CutLine(item.id, item.values, speaker, text)


def count_cuts(path: str | Path) -> int:
    """Count the lines of a manifest, for progress bars; 0 if it cannot be read."""
    try:
        with gzip.open(path, "rb") as stream:
            return sum(1 for _ in stream)
    except (OSError, EOFError, zlib.error):
        return 0


class ManifestWriter:
    """Writes items as JSON lines, compressed; equal items give equal bytes.

    Use as a context manager. The file's time stamp field is left empty (Lhotse's own
    writer puts the clock there, so that no two runs would agree).
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

    def __exit__(self, *_: object) -> None:
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
                remedy="give each recording and each utterance its own id",
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

    def ids(self) -> list[str]:
        """Return the ids of the items, sorted."""
        return sorted(self._offsets)

    def __iter__(self) -> Iterator[ItemT]:
        """Yield the items, sorted by id."""
        for item_id in self.ids():
            yield self[item_id]

    def __enter__(self) -> Spool[ItemT]:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _line(item: Item) -> bytes:
    """Return one item as a line of JSON."""
    try:
        return (json.dumps(item.to_dict(), ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError as error:
        raise UserError(
            "has half a character, which no file can hold",
            utterance=ascii(item.id),
            remedy="fix the text that it comes from",
        ) from error
