"""Numbers and events of sequence training: of an utterance, a step, a whole training.

Sums over frames go with each step to the log (`latflow.criteria.protocol.Loss`); this
module holds their names, and what does not fit a step: the drift of alignments by
phone, and the ledger of failures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.hmm.transition_model import TransitionModel
from latflow.ledger import Action, Entry, Ledger

_STAGE = "sequence"

#: Name -> what is summed. The log divides by frames: `depth` becomes arcs a frame, and
#: the processor time of a part its share of real time once divided by the frame shift.
STATISTICS: dict[str, str] = {
    "objective": "value of the criterion, maximized, without cross-entropy",
    "ce": "cross-entropy of the alignment's labels, unweighted",
    "depth": "arcs of the lattices that consume a frame",
    "lattice_beam": "lattice beam x frames",
    "numerator_in_lattice": "frames whose aligned pdf is on some path of the lattice",
    "oracle_errors": "errors of the lattices' best words, of a sample of utterances",
    "oracle_words": "words of the references of that sample",
    "aligned_frames": "frames with both an alignment made on the fly and a static one",
    "drifted_frames": "of these, frames whose pdf differs",
    "utterances": "utterances, skipped ones too",
    "skipped": "utterances that gave nothing",
    "retried": "searches for lattices or alignments that were widened",
    "partial": "utterances whose lattice reaches no final state",
    "fallbacks": "utterances that fell back to their static alignment",
    "seconds_align": "processor time of alignments",
    "seconds_lattice": "processor time of searches for lattices",
    "seconds_criterion": "processor time of the criterion and of oracle errors",
    "seconds_wait": "time that the training waited for the above",
}


@dataclass
class UtteranceResult:
    """The result of an utterance in a step.

    Attributes:
        utterance: its id.
        num_frames: frames that count; 0 if it was skipped.
        objective: value of the criterion.
        alignment: transition-ids, int32[T]; None if it was skipped.
        sums: `STATISTICS`, and those of the criterion.
        events: for the ledger.
        drift: counts of `Drift`, where two alignments could be compared.
    """

    utterance: str
    num_frames: int = 0
    objective: float = 0.0
    alignment: np.ndarray | None = None
    sums: dict[str, float] = field(default_factory=lambda: {"utterances": 1.0})
    events: list[Entry] = field(default_factory=list)
    drift: np.ndarray | None = None

    def add(self, name: str, value: float) -> None:
        """Add to a sum."""
        self.sums[name] = self.sums.get(name, 0.0) + value

    def note(self, reason: str, action: Action, beam: float | None = None) -> None:
        """Add an event, of a search with a beam."""
        self.events.append(Entry(_STAGE, self.utterance, reason, action, beam))

    def skip(self, reason: str, beam: float | None = None) -> None:
        """Give the utterance up."""
        self.add("skipped", 1.0)
        self.note(reason, "skipped", beam)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the processor time of a block, in this thread, to a sum."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.add(name, time.thread_time() - began)


class Drift:
    """Distance of alignments made on the fly from the static ones, by phone.

    Args:
        model: what transition-ids mean.

    Attributes:
        counts: int64[phones + 1, 3], by the static alignment's phone: frames compared,
            frames whose pdf differs, frames whose phone differs.
    """

    def __init__(self, model: TransitionModel) -> None:
        self._pdf, self._phone = model.pdf, model.phone
        self.counts = np.zeros((int(model.phone.max()) + 1, 3), np.int64)

    def compare(self, static: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Count the frames of an utterance; does not add them.

        Args:
            static: transition-ids, int32[T].
            fresh: transition-ids, int32[T].

        Returns:
            As `counts`.
        """
        phone = self._phone[static]
        size = len(self.counts)
        moved = (
            None,
            self._pdf[static] != self._pdf[fresh],
            phone != self._phone[fresh],
        )
        columns = [
            np.bincount(phone if m is None else phone[m], minlength=size) for m in moved
        ]
        return np.stack(columns, axis=1)

    def by_phone(self, names: Mapping[int, str]) -> dict[str, dict[str, float]]:
        """Return frames and shares that moved, of each phone that occurred.

        Args:
            names: phone id -> name.
        """
        return {
            names.get(phone, str(phone)): {
                "frames": int(frames),
                "pdf_changed": round(int(pdf) / int(frames), 6),
                "phone_changed": round(int(other) / int(frames), 6),
            }
            for phone, (frames, pdf, other) in enumerate(self.counts)
            if frames
        }


class Journal:
    """Ledger and drift of a rank over a training.

    An event that recurs in every epoch is entered once; the ledger grows with the
    corpus, not with the time.

    Args:
        model: what transition-ids mean.
    """

    def __init__(self, model: TransitionModel) -> None:
        self.ledger = Ledger(_STAGE)
        self.drift = Drift(model)
        self._entered: set[tuple[str, str, str]] = set()

    def enter(self, result: UtteranceResult) -> None:
        """Enter what happened to an utterance."""
        for event in result.events:
            key = (event.utterance, event.reason, event.action)
            if key not in self._entered:
                self._entered.add(key)
                self.ledger.record(
                    event.utterance, event.reason, action=event.action, beam=event.beam
                )
        if result.drift is not None:
            self.drift.counts += result.drift

    def contents(self) -> tuple[list[Entry], np.ndarray]:
        """Return entries of the ledger and counts of the drift, for other ranks."""
        return self.ledger.entries, self.drift.counts

    def join(self, ranks: Sequence[tuple[list[Entry], np.ndarray]]) -> None:
        """Take the place of the journals of all ranks together.

        Args:
            ranks: `contents` of each, this one's too.
        """
        unique = {entry: None for entries, _ in ranks for entry in entries}
        self.ledger.entries = list(unique)
        self._entered = {(e.utterance, e.reason, e.action) for e in unique}
        self.drift.counts = np.sum([counts for _, counts in ranks], axis=0)

    def write(self, folder: str | Path, names: Mapping[int, str]) -> None:
        """Write `sequence_ledger.jsonl` and `drift.json` into a folder.

        Args:
            folder: of the model, or of a rank.
            names: phone id -> name.
        """
        self.ledger.write(Path(folder) / "sequence_ledger.jsonl")
        text = json.dumps(self.drift.by_phone(names), indent=1, ensure_ascii=False)
        with atomic_output(Path(folder) / "drift.json") as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        entries = [asdict(entry) for entry in self.ledger.entries]
        return {"drift": self.drift.counts.tolist(), "ledger": entries}

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint, with what all of its ranks had kept.

        Args:
            states: `state` of each.

        Raises:
            UserError: they are of a model with other phones.
        """
        for state in states:
            if np.shape(state["drift"]) != self.drift.counts.shape:
                raise UserError(
                    f"a checkpoint with {len(state['drift']) - 1} phones, where the "
                    f"model has {len(self.drift.counts) - 1}",
                    remedy="restart the training, or take the system it was begun with",
                )
        self.join(
            [
                (
                    [Entry(**entry) for entry in state["ledger"]],
                    np.array(state["drift"], np.int64),
                )
                for state in states
            ]
        )
