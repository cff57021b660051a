"""Sizes and times of a decoding, or of the parts of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latflow.archive_sizes import Entries, archive_sizes
from latflow.decode.options import SearchOptions
from latflow.files import write_json

if TYPE_CHECKING:
    from latflow.decode.recognizer import Result

#: What is known of a part of a decoding, in its folder.
PART = "part.json"


@dataclass
class Totals:
    """Adds up sizes and times.

    Sizes are integers, so that sums over parts are those over the whole.

    Attributes:
        frame_shift: seconds.
        threads: utterances searched at a time.
        utterances: all of them.
        skipped: of these, without a lattice.
        retried: searched twice.
        partial: with incomplete paths.
        frames: of the features.
        searched_frames: fewer, where a network subsamples.
        arcs: of the lattices, that consume a frame.
        active: tokens followed, in all frames.
        log_like_seconds: processor time of log-likelihoods.
        search_seconds: processor time of the search.
        wall_seconds: of the job, or of all jobs together.
    """

    frame_shift: float
    threads: int
    utterances: int = 0
    skipped: int = 0
    retried: int = 0
    partial: int = 0
    frames: int = 0
    searched_frames: int = 0
    arcs: int = 0
    active: int = 0
    log_like_seconds: float = 0.0
    search_seconds: float = 0.0
    wall_seconds: float = 0.0

    def add(self, result: Result) -> None:
        """Take one utterance in."""
        self.utterances += 1
        self.frames += result.num_frames
        self.searched_frames += result.num_scores
        self.log_like_seconds += result.log_like_seconds
        self.search_seconds += result.search_seconds
        self.retried += result.attempt.was_retried
        if result.decoded is None:
            self.skipped += 1
            return
        lattice = result.decoded.lattice
        self.partial += result.attempt.is_partial
        self.arcs += int(np.count_nonzero(lattice.transition_id))
        self.active += round(result.decoded.mean_active * lattice.num_frames)

    @classmethod
    def of_parts(cls, parts: Sequence[Totals]) -> Totals:
        """Return the totals of a set from those of its parts, at least one."""
        values = [asdict(part) for part in parts]
        sums = {name: sum(one[name] for one in values) for name in values[0]}
        constant = {name: values[0][name] for name in ("frame_shift", "threads")}
        return cls(**{**sums, **constant})

    @property
    def real_time_factor(self) -> float:
        """Processor time over the duration of the speech: of one core."""
        return (self.log_like_seconds + self.search_seconds) * self._per_audio

    @property
    def mean_depth(self) -> float:
        """Lattice arcs a frame of the scores."""
        return self.arcs / max(self.searched_frames, 1)

    @property
    def mean_active(self) -> float:
        """Tokens followed a frame of the scores."""
        return self.active / max(self.searched_frames, 1)

    @property
    def _per_audio(self) -> float:
        """One over the duration of the speech in seconds."""
        audio = self.frames * self.frame_shift
        return 1.0 / audio if audio else 0.0

    def summary(self, options: SearchOptions) -> dict[str, Any]:
        """Return the contents of `decode.json`.

        Real-time factors are processor time over the duration of the audio, so they
        hold for one core whatever the number of threads.
        """
        return {
            "utterances": self.utterances,
            "skipped": self.skipped,
            "retried": self.retried,
            "partial": self.partial,
            "frames": self.frames,
            "searched_frames": self.searched_frames,
            "audio_seconds": self.frames * self.frame_shift,
            "wall_seconds": self.wall_seconds,
            "threads": self.threads,
            "cpu_seconds": {
                "log_likelihoods": self.log_like_seconds,
                "search": self.search_seconds,
            },
            "real_time_factor_per_core": {
                "log_likelihoods": self.log_like_seconds * self._per_audio,
                "search": self.search_seconds * self._per_audio,
                "both": self.real_time_factor,
            },
            "mean_lattice_depth": self.mean_depth,
            "mean_active_tokens": self.mean_active,
            **options.part(SearchOptions).values(),
            "lattice_scale": 1.0,
        }


def write_summary(
    out_dir: Path,
    part: str | None,
    totals: Totals,
    options: SearchOptions,
    facts: Mapping[str, Any],
    to_join: Mapping[str, Any] | None = None,
    *,
    lattices: Entries,
) -> None:
    """Write `decode.json`, or of a part what it takes to make that of the whole.

    Args:
        out_dir: folder of the decoding, or of the part.
        part: its name; None for the whole.
        totals: of the utterances decoded.
        options: of the search.
        facts: further keys of `decode.json`, the same in all parts.
        to_join: what those of the whole are made of, where parts differ.
        lattices: entries of `lattices.ark`.
    """
    archives = archive_sizes(out_dir, {"lattices.ark": lattices})
    if part is None:
        summary = {**totals.summary(options), **facts}
        write_json(out_dir / "decode.json", {**summary, **archives})
    else:
        record = {"totals": asdict(totals), "facts": facts, **(to_join or {})}
        write_json(out_dir / PART, {**record, **archives})
