"""The text files of a Kaldi data directory: `id value...` lines, read by id."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from latflow.errors import UserError
from latflow.files import atomic_output, require_file
from latflow.text_files import decode_line, open_text

_ABOVE = 4  # folders above a table that its paths may be relative to


def check_field(value: str, file: str | Path, what: str) -> str:
    """Refuse an id or path that a Kaldi file cannot hold in one field.

    Raises:
        UserError: it is empty or holds a blank.
    """
    if value.split() != [value]:
        raise UserError(
            f"{what} {value!r} is empty or holds a blank, which Kaldi cannot read",
            file=file,
            utterance=value,
            remedy="rename it",
        )
    return value


class Table:
    """One file of `id value...` lines, with access by id; only ids stay in memory.

    Lines need not be sorted. Values are read from disk when asked for, so a table of
    transcripts costs memory for its ids only. Not for use by several threads.

    Args:
        path: the file; of any encoding that `latflow.text_files` reads.

    Raises:
        UserError: the file is missing or not UTF-8, or an id occurs twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        require_file(self.path, "check the path; a Kaldi data directory needs it")
        with ExitStack() as stack:
            self._stream = stack.enter_context(open_text(self.path))
            self._offsets = self._scan()
            self._stack = stack.pop_all()

    def _scan(self) -> dict[str, int]:
        """Check every line and note where it begins."""
        offsets: dict[str, int] = {}
        position = self._stream.tell()
        for number, raw in enumerate(self._stream, start=1):
            words = raw.split(maxsplit=1)[:1]
            key = words[0].decode("utf-8", "replace") if words else None
            fields = decode_line(raw, number, self.path, key).split(maxsplit=1)
            if fields:
                # Tables of one folder share their ids: keep one copy of each.
                self._note(offsets, sys.intern(fields[0]), position, number)
            position += len(raw)
        return offsets

    def _note(
        self, offsets: dict[str, int], key: str, position: int, number: int
    ) -> None:
        """Note where the line of an id begins; refuse a second one."""
        if key in offsets:
            raise UserError(
                f"line {number}: this id occurs twice",
                file=self.path,
                utterance=key,
                remedy="remove one of the lines",
            )
        offsets[key] = position

    def __contains__(self, key: object) -> bool:
        return key in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[str]:
        """Yield the ids, sorted by bytes."""
        return iter(sorted(self._offsets))

    def __getitem__(self, key: str) -> str:
        """Return the rest of an id's line, without blanks around it; may be empty."""
        self._stream.seek(self._offsets[key])
        fields = self._stream.readline().decode("utf-8").split(maxsplit=1)
        return fields[1].rstrip() if len(fields) > 1 else ""

    def get(self, key: str) -> str | None:
        """Return `self[id]`, or None if the id is not there."""
        return self[key] if key in self._offsets else None

    def close(self) -> None:
        """Close the file."""
        self._stack.close()


def find_file(folder: Path, entry: str) -> str:
    """Return the path of a file that a table names.

    One that is not absolute is relative to the table's folder, or to the nearest folder
    above it where the file is: Kaldi's recipes run two above `data/train`.

    Args:
        folder: of the table.
        entry: what it says.
    """
    path = os.path.normpath(folder / entry)
    if os.path.exists(path):
        return path
    above = (os.path.normpath(parent / entry) for parent in folder.parents[:_ABOVE])
    return next(filter(os.path.exists, above), path)


def write_table(path: str | Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write `id value` lines in the order given (Kaldi wants them sorted by id)."""
    with (
        atomic_output(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        for key, value in rows:
            stream.write(f"{key} {value}\n")
