"""Counts of what was done to utterances, for summaries and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

from lhotse import Recording

import latflow.corpus.audio_backend  # noqa: F401 - headers are read by Lhotse
from latflow.simulation.records import Record

_KINDS = ("room", "movement", "response", "noises", "speakers", "device")


class Counts:
    """Counts of records, and of what noises did."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._rooms: dict[int, int] = {}  # rooms drawn before each, by its number
        self._files: dict[str, bool] = {}  # of recordings: whether of another rate

    def add(self, record: Record, events: Mapping[str, int]) -> None:
        """Count an utterance, or the utterances of a conversation.

        Args:
            record: what was done.
            events: what came of it; see `Simulator.apply`.
        """
        number = max(1, len(record.turns))
        self._kinds["utterances"] += number
        self._kinds["simulated"] += number * record.is_simulated
        for kind in _KINDS:
            self._kinds[f"with_{kind}"] += bool(getattr(record, kind))
        for event in ("noises_repeated", "noises_moved"):
            self._kinds[event] += events.get(event, 0)
        if record.room is not None:
            self._rooms[record.room.number] = record.room.redraws
        self._files |= recordings(record)

    def values(self) -> dict[str, float]:
        """Return the counts by name."""
        return {
            **self._kinds,
            "rooms": len(self._rooms),
            "rooms_drawn_anew": sum(self._rooms.values()),
            "files_resampled": sum(self._files.values()),
        }


def recordings(record: Record) -> dict[str, bool]:
    """Return the noises and the response of a record: whether of another rate."""
    files = (record.response, *(noise.file for noise in record.noises))
    return {f: _sample_rate(f) != record.rate for f in files if f is not None}


@cache  # headers of small files, once for all passes
def _sample_rate(file: str) -> int:
    """Return the sample rate of a recording, Hz."""
    return Recording.from_file(file).sampling_rate
