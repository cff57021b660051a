r"""Subtitles as transcripts with times: SubRip (`.srt`) and WebVTT (`.vtt`).

Both are cues: a line `00:01:02,500 --> 00:01:04,000`, then lines of text, then an empty
line. What stands before the times (a number, a name), headers, notes and styles are not
text. Marks of the form (`<i>`, `{\an8}`, times within a cue) go; WebVTT's voices (`<v
Ann>`) name who speaks.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from latflow.corpus.textgrid import Interval, Tier
from latflow.errors import UserError
from latflow.text_files import read_lines

_TIME = r"(?:(\d+):)?(\d\d?):(\d\d?)(?:[,.](\d{1,3}))?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s|\Z)")
_MARKS = re.compile(
    r"</?(?:[biuscv]|font|lang|ruby|rt)(?:[ .][^>]*)?>|<\d[\d:.,]*>|\{\\[^}]*\}",
    re.IGNORECASE,
)
_VOICE = re.compile(r"<v(?:\.[^ >]*)? ([^>]+)>", re.IGNORECASE)
_OVERLAP = 0.5  # seconds by which cues of one voice may lie over each other
_OFTEN = 0.5  # share of cues that begin with the line before, where captions roll


def read_subtitles(path: str | Path) -> list[Tier]:
    """Read the cues of a file of subtitles, those of each voice as a tier.

    Raises:
        UserError: the file is missing or damaged; or its lines stand in several cues,
            so that their times are ambiguous.
    """
    voices: dict[str, list[Interval]] = {}
    repeated, count, last = 0, 0, ""
    for number, start, end, lines in _cues(path):
        if end <= start:
            raise UserError(
                f"line {number}: a cue ends at {end:g} s, and begins at {start:g} s",
                file=path,
                remedy="fix its times",
            )
        repeated += bool(last) and _plain(lines[0]) == last
        count, last = count + 1, _plain(lines[-1])
        found = _VOICE.search(lines[0])
        voice = found[1].strip() if found else ""
        text = " ".join(filter(None, map(_plain, lines)))
        voices.setdefault(voice, []).append(Interval(start, end, text))
    if repeated > _OFTEN * count:
        raise UserError(
            "captions that roll: lines stand in several cues",
            file=path,
            remedy="take subtitles whose lines stand once, or the text alone (.txt)",
        )
    for cues in voices.values():
        cues.sort()
        _check_overlap(path, cues)
    return [Tier(voice, cues) for voice, cues in voices.items()]


def _cues(path: str | Path) -> Iterator[tuple[int, float, float, list[str]]]:
    """Yield (line number, start, end, lines of text) of cues that have a text."""
    lines: list[str] | None = None
    number, times = 0, (0.0, 0.0)
    for at, line in [*read_lines(path), (0, "")]:
        found = _TIMES.match(line)
        if found or not line.strip():
            if lines:
                yield number, *times, lines
            lines = None
        if found:
            parts = found.groups()
            number, times, lines = at, (_seconds(parts[:4]), _seconds(parts[4:])), []
        elif "-->" in line:
            raise UserError(
                f"line {at}: no times of a cue: {line.strip()[:60]}",
                file=path,
                remedy="write them as 00:01:02,500 --> 00:01:04,000",
            )
        elif lines is not None and _plain(line):
            lines.append(line)


def _seconds(parts: Sequence[str | None]) -> float:
    """Return a time of hours, minutes, seconds and their decimals."""
    hours, minutes, seconds, decimals = parts
    whole = 3600 * int(hours or 0) + 60 * int(minutes or 0) + int(seconds or 0)
    return float(f"{whole}.{decimals or 0}")


def _plain(line: str) -> str:
    """Return a line of text without marks of its form."""
    return " ".join(html.unescape(_MARKS.sub("", line)).split())


def _check_overlap(path: str | Path, cues: Sequence[Interval]) -> None:
    """Refuse cues of one voice that overlap.

    Raises:
        UserError: names the first two.
    """
    for one, other in pairwise(cues):
        if one.end > other.start + _OVERLAP:
            raise UserError(
                f"cues overlap in time: {one.text[:40]!r} and {other.text[:40]!r} at "
                f"{other.start:g} s",
                file=path,
                remedy="fix their times; of several people, name them (<v Ann>)",
            )
