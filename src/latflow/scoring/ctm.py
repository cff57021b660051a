"""CTM files: recognised words with their times (NIST's conversation time marks).

One word a line: recording (here the utterance), channel, start, duration, word, and
optionally a confidence. Times in seconds from the start of the utterance.

Public: `TimedWord`, `timed_words`, `read_ctm`, `write_ctm`, `ctm_line`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output, read_lines


@dataclass(frozen=True)
class TimedWord:
    """One recognised word.

    Attributes:
        utterance: utterance (or recording) id.
        start: seconds from its beginning, >= 0.
        duration: seconds, >= 0.
        word: the word.
        channel: NIST's channel name.
        confidence: posterior probability in [0, 1]; None where none was computed.
    """

    utterance: str
    start: float
    duration: float
    word: str
    channel: str = "1"
    confidence: float | None = None


class ConfidentWords(Protocol):
    """Words with frames and confidences, as `latflow.lattice.mbr` finds them."""

    @property
    def words(self) -> np.ndarray:
        """Word ids, int32[N]."""
        ...

    @property
    def confidence(self) -> np.ndarray:
        """Posterior of each word, float64[N], in [0, 1]."""
        ...

    @property
    def begin(self) -> np.ndarray:
        """First frame of each word, float64[N]."""
        ...

    @property
    def end(self) -> np.ndarray:
        """Frame behind the last one of each word, float64[N]."""
        ...


def timed_words(
    utterance: str,
    found: ConfidentWords,
    names: Mapping[int, str],
    *,
    frame_shift: float,
    channel: str = "1",
) -> list[TimedWord]:
    """Words of an utterance with times and confidences, for a CTM file.

    Args:
        utterance: its id.
        found: an `MbrResult`.
        names: word id -> word.
        frame_shift: seconds from frame to frame.
        channel: NIST's channel name.

    Raises:
        UserError: a word id has no name.

    Source: Kaldi `latbin/lattice-to-ctm-conf.cc`.
    """
    listed = []
    rows = zip(found.words, found.begin, found.end, found.confidence, strict=True)
    for word, begin, end, confidence in rows:
        if int(word) not in names:
            raise UserError(
                f"word id {word} is not in words.txt",
                utterance=utterance,
                remedy="use the lang directory that the graph was made of",
            )
        start, duration = float(begin) * frame_shift, float(end - begin) * frame_shift
        name = names[int(word)]
        listed.append(
            TimedWord(utterance, start, duration, name, channel, float(confidence))
        )
    return listed


def read_ctm(path: str | Path) -> Iterator[TimedWord]:
    """Yield the words of a CTM file in its order; `;;` starts a comment line.

    Raises:
        UserError: a line has too few or too many fields, or a time is no number or
            negative.
    """
    for number, line in read_lines(path):
        fields = line.split()
        if not fields or fields[0].startswith(";;"):
            continue
        try:
            utterance, channel, start, duration, word, *rest = fields
            confidence = float(*rest) if rest else None
            timed = TimedWord(
                utterance, float(start), float(duration), word, channel, confidence
            )
        except (TypeError, ValueError):
            timed = None
        if timed is None or not _is_time(timed.start) or not _is_time(timed.duration):
            raise UserError(
                f"line {number} is not: utterance channel start duration word",
                file=path,
                remedy="times are seconds >= 0; a confidence may follow the word",
            )
        yield timed


def write_ctm(path: str | Path, words: Iterable[TimedWord]) -> None:
    """Write a CTM file in the order given, atomically; times to the millisecond."""
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.writelines(map(ctm_line, words))


def ctm_line(w: TimedWord) -> str:
    """One line of a CTM file, with its end."""
    confidence = "" if w.confidence is None else f" {w.confidence:.3f}"
    times = f"{w.start:.3f} {w.duration:.3f}"
    return f"{w.utterance} {w.channel} {times} {w.word}{confidence}\n"


def _is_time(seconds: float) -> bool:
    """Whether a number can be a time or a duration."""
    return math.isfinite(seconds) and seconds >= 0
