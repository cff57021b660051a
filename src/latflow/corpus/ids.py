"""Ids that Kaldi's files can hold: without blanks, no two the same.

Public: `Ids`, `plain_id`.
"""

from __future__ import annotations

from collections.abc import Container

from latflow.errors import UserError
from latflow.ledger import Ledger


def plain_id(text: str) -> str:
    """Return a text as an id: `_` in the place of blanks."""
    return "_".join(text.split())


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
