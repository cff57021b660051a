"""The ledger: every utterance a stage skipped, retried or cut, and why.

Each stage writes `ledger.jsonl`, one JSON object a line with the keys stage, utterance,
reason, action and (for searches) beam. The report counts them; a share of skipped
utterances over the configured bound fails the stage.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.parts import in_order_of_ids
from latflow.text_files import read_json_lines

Action = Literal[
    "skipped", "retried", "partial", "truncated", "noted", "renamed", "excluded"
]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One event of one utterance in one stage."""

    stage: str
    utterance: str
    reason: str
    action: Action
    beam: float | None = None


class Ledger:
    """Collects the entries of one stage and writes them.

    Args:
        stage: name of the stage, e.g. `align_tri1`.
        is_quiet: whether entries are not logged.
    """

    def __init__(self, stage: str, *, is_quiet: bool = False) -> None:
        self.stage = stage
        self._level = logging.DEBUG if is_quiet else logging.WARNING
        self.entries: list[Entry] = []

    @classmethod
    def of_parts(cls, stage: str, paths: Iterable[str | Path]) -> Ledger:
        """Return the ledger of a stage whose jobs each went over a part of the set.

        Args:
            stage: its name.
            paths: the `ledger.jsonl` of each part.
        """
        ledger = cls(stage)
        parts = [((e.utterance, e) for e in read_ledger(path)) for path in paths]
        ledger.entries = [
            replace(entry, stage=stage) for _, entry in in_order_of_ids(parts)
        ]
        return ledger

    def record(
        self,
        utterance: str,
        reason: str,
        *,
        action: Action = "skipped",
        beam: float | None = None,
    ) -> None:
        """Add one event and log it."""
        self.entries.append(Entry(self.stage, utterance, reason, action, beam))
        log.log(self._level, "%s: %s: %s (%s)", self.stage, utterance, reason, action)

    def num_skipped(self) -> int:
        """Return the distinct utterances that the stage left out."""
        return len({e.utterance for e in self.entries if e.action == "skipped"})

    def check(self, num_utterances: int, *, max_skipped_fraction: float) -> None:
        """Fail when more utterances were skipped than the configuration allows.

        Raises:
            UserError: skipped / num_utterances > max_skipped_fraction.
        """
        skipped = self.num_skipped()
        share = skipped / max(1, num_utterances)
        if num_utterances and share > max_skipped_fraction:
            worst = next(e for e in self.entries if e.action == "skipped")
            raise UserError(
                f"{self.stage} skipped {skipped} of {num_utterances} utterances "
                f"(allowed share {max_skipped_fraction:g}); first: {worst.reason}",
                utterance=worst.utterance,
                remedy="fix the data, or raise ledger.max_skipped_fraction (--config "
                f"'ledger={{max_skipped_fraction: {_rounded_up(share)}}}'; of latflow "
                f"align --max-skipped {_rounded_up(share)}), and run again",
            )

    def write(self, path: str | Path) -> None:
        """Write the entries as JSON lines, sorted by utterance, atomically."""
        with atomic_output(path) as temporary, temporary.open("w") as stream:
            for entry in sorted(self.entries, key=lambda e: (e.utterance, e.reason)):
                stream.write(json.dumps(asdict(entry)) + "\n")


def _rounded_up(share: float) -> float:
    """Return the next hundredth above a share, at most 1."""
    return min(1.0, math.ceil(100 * share) / 100)


def read_ledger(path: str | Path) -> Iterator[Entry]:
    """Yield the entries of a `ledger.jsonl`.

    Raises:
        UserError: the file is missing, or a line is not an entry.
    """
    remedy = "remove the file, and run its stage again"
    return read_json_lines(path, _entry, "an entry", remedy)


def _entry(values: dict[str, Any]) -> Entry:
    """Return an entry of its values.

    Raises:
        TypeError: one is missing, unknown, or of another type.
    """
    found = Entry(**values)
    texts = (found.stage, found.utterance, found.reason, found.action)
    is_beam = found.beam is None or type(found.beam) in (int, float)
    if not is_beam or not all(isinstance(text, str) for text in texts):
        raise TypeError("a value of another type")
    return found
