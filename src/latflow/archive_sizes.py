"""Archives in a stage's record: what is read later is what was written.

A Kaldi archive has no end mark: cut between two entries, or empty, it looks whole, and
results would count what is left. So the record of a stage (`decode.json`,
`statistics.json`, ...) has the sizes of the archives beside it, and of those that it
names the number of entries and a digest of their ids. Readers compare the size at once,
the rest when they have seen all entries. Archives that no record knows, Kaldi's for
one, are read unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from latflow.errors import UserError

Item = TypeVar("Item")
_KEY = "archives"
_RECORDS = ("decode.json", "rescore.json", "statistics.json", "part.json")


class Entries:
    """The ids of an archive's entries, in their order: how many, and a digest."""

    def __init__(self) -> None:
        self._count = 0
        self._digest = hashlib.sha256()

    def add(self, utterance: str) -> None:
        """Count an entry."""
        self._count += 1
        self._digest.update(f"{utterance}\n".encode())

    def facts(self) -> dict[str, Any]:
        """Return what a record says of them."""
        return {"entries": self._count, "ids": self._digest.hexdigest()[:16]}


def archive_sizes(
    folder: str | Path, entries: Mapping[str, Entries] = MappingProxyType({})
) -> dict[str, Any]:
    """Return what the record of a stage says of the archives in its folder.

    Args:
        folder: with all archives (`*.ark`) whole.
        entries: of archives, by name, as they were written.

    Returns:
        One key, for the record: of each archive, by its name, bytes and entries.
    """
    return {
        _KEY: {
            path.name: {
                "bytes": path.stat().st_size,
                **(entries[path.name].facts() if path.name in entries else {}),
            }
            for path in sorted(Path(folder).glob("*.ark"))
        }
    }


def checked_entries(
    path: str | Path, items: Iterable[tuple[str, Item]]
) -> Iterator[tuple[str, Item]]:
    """Yield the entries of an archive; refuse one that differs from its record.

    Args:
        path: the archive; without a record of it, nothing is refused.
        items: (id, content) of its entries; taken after its size has been compared.

    Raises:
        UserError: it has another size, or other entries, than the record beside it
            says. Entries are compared at the end.
    """
    source = Path(path)
    record, written = _record_of(source)
    if "bytes" in written and written["bytes"] != (size := source.stat().st_size):
        raise _changed(source, record, f"{size} bytes", repr(written["bytes"]))
    if "ids" not in written:
        yield from items
        return
    entries = Entries()
    for utterance, item in items:
        entries.add(utterance)
        yield utterance, item
    facts = entries.facts()
    if any(written.get(key) != value for key, value in facts.items()):
        wanted = "other ids" if written.get("entries") == facts["entries"] else "others"
        found = f"{facts['entries']} entries"
        raise _changed(source, record, found, f"{written.get('entries')!r}, {wanted}")


def _changed(path: Path, record: str, found: str, wanted: str) -> UserError:
    """Return the error of an archive that is not the one of its record."""
    return UserError(
        f"has {found}, and the stage that wrote it says {wanted} in {record}: "
        "it was cut or changed",
        file=path,
        remedy="remove it, and run the stage again",
    )


def _record_of(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the name of an archive's record, and its content; empty without one."""
    if path.suffix == ".ark" and path.is_file():
        for record in _RECORDS:
            try:
                written = json.loads(path.with_name(record).read_bytes())[_KEY][
                    path.name
                ]
            except (OSError, ValueError, LookupError, TypeError, RecursionError):
                continue
            return record, written if isinstance(written, dict) else {"bytes": written}
    return "", {}
