"""Findings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from latflow.errors import UserError

Severity = Literal["error", "warning", "note"]
MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor found.

    Attributes:
        severity: `error`, `warning` or `note`.
        file: the file or folder to look at.
        what: what was found there.
        remedy: what to do about it.
    """

    severity: Severity
    file: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.file}: {self.what} - {self.remedy}"


def finding_of(error: UserError) -> Finding:
    """Return an error that the user would meet as a finding."""
    what = f"{error.utterance}: {error.what}" if error.utterance else error.what
    return Finding("error", error.file or "", what, error.remedy or "fix it")


def some(items: list[str], total: int | None = None) -> str:
    """Return the first few of some items."""
    total = len(items) if total is None else total
    shown = ", ".join(items[:MAX_EXAMPLES])
    return f"{shown}, ..." if total > MAX_EXAMPLES else shown
