"""What decoding a set leaves beside lattices: entries in the ledger, sizes and times.

Public: `Tally`, `record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from latflow.decode.recogniser import Result
from latflow.ledger import Ledger

_SEARCH_OPTIONS = (
    "beam",
    "lattice_beam",
    "max_active",
    "min_active",
    "acoustic_scale",
    "on_no_final",
    "retry_beam_factor",
)


def record(ledger: Ledger, result: Result) -> None:
    """Note in the ledger what was not as it should be."""
    attempt = result.attempt
    if attempt.error is not None:
        reason = f"{attempt.error.what} - {attempt.error.remedy}"
        ledger.record(result.utterance, reason, beam=attempt.beam)
    elif attempt.is_partial:
        reason = "no final state reached: the lattice holds incomplete paths"
        ledger.record(result.utterance, reason, action="partial", beam=attempt.beam)
    elif attempt.was_retried:
        reason = "a final state was reached only with a wider beam"
        ledger.record(result.utterance, reason, action="retried", beam=attempt.beam)


class Tally:
    """Adds up sizes and times.

    Args:
        frame_shift: seconds.
        threads: utterances searched at a time.
    """

    def __init__(self, frame_shift: float, threads: int) -> None:
        self._frame_shift = frame_shift
        self._threads = threads
        self._utterances = 0
        self._frames = 0
        self._arcs = 0  # that consume a frame
        self._active = 0.0
        self._counts = {"skipped": 0, "retried": 0, "partial": 0}
        self._log_like_seconds = 0.0
        self._search_seconds = 0.0

    def add(self, result: Result) -> None:
        """Take one utterance in."""
        self._utterances += 1
        self._frames += result.num_frames
        self._log_like_seconds += result.log_like_seconds
        self._search_seconds += result.search_seconds
        self._counts["retried"] += result.attempt.was_retried
        if result.decoded is None:
            self._counts["skipped"] += 1
            return
        lattice = result.decoded.lattice
        self._counts["partial"] += result.attempt.is_partial
        self._arcs += int(np.count_nonzero(lattice.transition_id))
        self._active += result.decoded.mean_active * lattice.num_frames

    @property
    def real_time_factor(self) -> float:
        """Processor time over the duration of the speech: of one core."""
        return (self._log_like_seconds + self._search_seconds) * self._per_audio

    @property
    def mean_depth(self) -> float:
        """Lattice arcs a frame."""
        return self._arcs / max(self._frames, 1)

    @property
    def mean_active(self) -> float:
        """Tokens followed a frame."""
        return self._active / max(self._frames, 1)

    @property
    def _per_audio(self) -> float:
        """One over the duration of the speech in seconds."""
        audio = self._frames * self._frame_shift
        return 1.0 / audio if audio else 0.0

    def summary(
        self, options: Mapping[str, Any], wall_seconds: float
    ) -> dict[str, Any]:
        """The contents of `decode.json`.

        Real-time factors are processor time over the duration of the audio, so they
        hold for one core whatever the number of threads.
        """
        return {
            "utterances": self._utterances,
            **self._counts,
            "frames": self._frames,
            "audio_seconds": self._frames * self._frame_shift,
            "wall_seconds": wall_seconds,
            "threads": self._threads,
            "cpu_seconds": {
                "log_likelihoods": self._log_like_seconds,
                "search": self._search_seconds,
            },
            "real_time_factor_per_core": {
                "log_likelihoods": self._log_like_seconds * self._per_audio,
                "search": self._search_seconds * self._per_audio,
                "both": self.real_time_factor,
            },
            "mean_lattice_depth": self.mean_depth,
            "mean_active_tokens": self.mean_active,
            **{name: options[name] for name in _SEARCH_OPTIONS},
        }
