"""What became of an utterance in a step of sequence training.

Public: `Outcome`, `Event`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from latflow.ledger import Action


@dataclass(frozen=True)
class Event:
    """Something about an utterance that belongs in the ledger.

    Attributes:
        reason: what happened.
        action: what was done.
        beam: of the search concerned.
    """

    reason: str
    action: Action
    beam: float | None = None


@dataclass
class Outcome:
    """What became of an utterance.

    Attributes:
        utterance: its id.
        num_frames: frames that count; 0 if it was skipped.
        objective: value of the criterion.
        alignment: transition-ids, int32[T]; None if it was skipped.
        sums: what else is summed, by the names in `latflow.sequence.statistics`.
        events: for the ledger.
        drift: counts of `Drift`, where two alignments could be compared.
    """

    utterance: str
    num_frames: int = 0
    objective: float = 0.0
    alignment: np.ndarray | None = None
    sums: dict[str, float] = field(default_factory=lambda: {"utterances": 1.0})
    events: list[Event] = field(default_factory=list)
    drift: np.ndarray | None = None

    def add(self, name: str, value: float) -> None:
        """Add to a sum."""
        self.sums[name] = self.sums.get(name, 0.0) + value

    def skip(self, reason: str, beam: float | None = None) -> None:
        """Give the utterance up."""
        self.add("skipped", 1.0)
        self.events.append(Event(reason, "skipped", beam))
