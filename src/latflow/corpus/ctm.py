"""NIST's CTM files: words, or phones, with times.

A line is one word: recording (or utterance), channel, start, duration, word, and
optionally a confidence, which further numbers may follow. Times in seconds from the
start of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from latflow.errors import UserError
from latflow.text_files import read_lines


@dataclass(frozen=True)
class TimedWord:
    """One recognized word.

    Attributes:
        utterance: utterance (or recording) id.
        start: seconds from its beginning, >= 0.
        duration: seconds, >= 0.
        word: the word.
        channel: NIST's channel name.
        confidence: posterior probability in [0, 1]; None where none was computed.
        further: numbers after it.
    """

    utterance: str
    start: float
    duration: float
    word: str
    channel: str = "1"
    confidence: float | None = None
    further: tuple[float, ...] = ()

    @property
    def end(self) -> float:
        """Seconds from the beginning to the word's end."""
        return self.start + self.duration


def read_ctm(path: str | Path) -> Iterator[TimedWord]:
    """Yield the words of a CTM file in its order; `;;` starts a comment line.

    Raises:
        UserError: a line has too few fields, a time is not a number or negative, or
            what follows the word is not a number.
    """
    for number, line in read_lines(path):
        fields = line.split()
        if not fields or fields[0].startswith(";;"):
            continue
        try:
            utterance, channel, start, duration, word, *rest = fields
            confidence, *further = map(float, rest or ["nan"])
            timed = TimedWord(
                utterance,
                float(start),
                float(duration),
                word,
                channel,
                confidence if rest else None,
                tuple(further),
            )
        except ValueError:
            timed = None
        if timed is None or not _is_time(timed.start) or not _is_time(timed.duration):
            raise UserError(
                f"line {number} is not: utterance channel start duration word",
                file=path,
                remedy="times are seconds >= 0; a confidence may follow the word",
            )
        yield timed


def ctm_line(w: TimedWord) -> str:
    """Return one line of a CTM file, with its end."""
    confidence = "" if w.confidence is None else f" {w.confidence:.3f}"
    times = f"{w.start:.3f} {w.duration:.3f}"
    further = "".join(f" {number:.4f}" for number in w.further)
    return f"{w.utterance} {w.channel} {times} {w.word}{confidence}{further}\n"


def _is_time(seconds: float) -> bool:
    """Return whether a number can be a time or a duration."""
    return math.isfinite(seconds) and seconds >= 0
