"""Ids that Kaldi's files can hold, and names of files for ids of any characters.

Ids of manifests and archives are anybody's: all that writes a file by an id has its
name from `file_name`, which never leaves the folder that it is written in.
"""

from __future__ import annotations

import re
from collections.abc import Container

from latflow.errors import UserError
from latflow.ledger import Ledger

_LONGEST_NAME = 255  # of files, bytes
# What a file's name cannot have, or what our escapes begin with; a dot in front is one
# of a folder (`..`), or hides the file. Lone surrogates have no bytes in UTF-8.
_NO_NAME = re.compile(r"^\.|[/%\x00-\x1f\x7f\ud800-\udfff]")


def plain_id(text: str) -> str:
    """Return a text as an id: `_` instead of blanks."""
    return "_".join(text.split())


def file_name(name: str, suffix: str = "", *, in_folders: bool = False) -> str:
    """Return the name of the file of an id; other names for other ids.

    What a name cannot have is written as `%` and hexadecimal digits, as in URLs.

    Args:
        name: of a recording, an utterance, and the like: any characters.
        suffix: of the file's name.
        in_folders: whether `/` parts folders from each other, below the one that the
            name is put into; otherwise it is escaped, too.

    Raises:
        UserError: the name is too long for a file.
    """
    parts = name.split("/") if in_folders else [name]
    *folders, last = [_NO_NAME.sub(_escaped, part) or "%" for part in parts]
    parts = [*folders, f"{last}{suffix}"]
    if max(len(part.encode()) for part in parts) > _LONGEST_NAME:
        raise UserError(
            "has an id too long for a file's name",
            utterance=f"{name[:40]}...",
            remedy="give it a shorter one",
        )
    return "/".join(parts)


def _escaped(found: re.Match[str]) -> str:
    """Return the bytes of a character as `%` and digits."""
    raw = found[0].encode("utf-8", "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in raw)


class Ids:
    """Names things by ids, and notes where one had to be changed.

    Args:
        what: is named, for messages, e.g. `speaker`.
        ledger: where changed ids are noted.
        taken: ids that are taken by others; None for those that this object gave.
    """

    def __init__(
        self, what: str, ledger: Ledger, taken: Container[str] | None = None
    ) -> None:
        self._what = what
        self._ledger = ledger
        self._given: set[str] = set()
        self._taken = self._given if taken is None else taken
        self._keeps = taken is None
        self._changed: dict[str, str] = {}
        self._made: set[str] = set()

    def known(self, raw: str) -> str:
        """Return the id of a thing that was named before; else what it is called."""
        return self._changed.get(raw, raw)

    def name(self, raw: str, wanted: str | None = None) -> str:
        """Return the id of a thing; the same for the same thing.

        Args:
            raw: what it is called where it comes from.
            wanted: the id that it gets if no other has it; None for `raw` with `_` in
                the place of blanks.

        Raises:
            UserError: it has no name but blanks.
        """
        if raw in self._changed:
            return self._changed[raw]
        plain = plain_id(raw) if wanted is None else wanted
        if not plain:
            raise UserError(
                f"a {self._what} without a name: {raw!r}", remedy="give it one"
            )
        is_free = plain not in self._made and (plain == raw or plain not in self._taken)
        if plain == raw and is_free:
            if self._keeps:
                self._given.add(raw)
            return raw
        name, number = plain, 2
        while name in self._made or name in self._taken:
            name, number = f"{plain}-{number}", number + 1
        self._made.add(name)
        self._changed[raw] = name
        if wanted is None or name != wanted:
            reason = f"{self._what} {raw!r} is called {name}"
            self._ledger.record(name, reason, action="renamed")
        return name
