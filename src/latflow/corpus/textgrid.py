"""Praat's TextGrids: tiers of labelled intervals, read and written.

Praat looks for texts in quotation marks and for numbers between blanks, in the order of
its format, and passes over other words, what is in brackets, and comments from `!` on.
So the long form and the short one are the same to it, as are all layouts of tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from latflow.errors import UserError
from latflow.files import require_file
from latflow.text_files import read_lines

_BINARY = b"ooBinaryFile"
# Texts; numbers, behind which letters don't count; what begins like either. The rest,
# which has no name, is passed over.
_PARTS = re.compile(
    r"""
    "(?P<text>(?:[^"]|"")*)"
    | (?<![^\s=]) (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
      [A-WYZa-wyz]* (?=[\s!]|\Z)
    | (?P<odd>" | (?<![^\s=])[-+]?\d[^\s!]*)
    | ![^\n]* | \[[^\]]*\] | <[^>\s]*> | [^\s!"=\[]+ | .
    """,
    re.VERBOSE | re.ASCII,
)
_ROUNDING = 1e-3  # seconds by which intervals may lie over each other


class Interval(NamedTuple):
    """A label from one time to another, seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Tier:
    """A tier of intervals.

    Attributes:
        name: of the tier; two tiers of a file never share one.
        intervals: in order of time, those with a label.
    """

    name: str
    intervals: Sequence[Interval]


def read_tiers(path: str | Path) -> list[Tier]:
    """Read the interval tiers of a TextGrid; tiers of points are left out.

    A tier that has the name of one before it gets a number behind its own.

    Raises:
        UserError: the file is missing or no TextGrid.
    """
    require_file(path)
    if not Path(path).stat().st_size:
        raise UserError("is empty (0 bytes)", file=path, remedy="restore the file")
    with Path(path).open("rb") as stream:
        is_binary = stream.read(len(_BINARY)) == _BINARY
    try:
        if is_binary:
            raise _DamageError("binary")
        lines = (line for _, line in read_lines(path))
        return _tiers(_Content("\n".join(lines)))
    except _DamageError as error:
        raise UserError(
            f"not a TextGrid in text form, or damaged ({error})",
            file=path,
            remedy="fix it in Praat, and save it as a text file (long or short)",
        ) from None


class _DamageError(ValueError):
    """What is wrong with a TextGrid."""


class _Content:
    """The texts and numbers of a TextGrid, one after another, all else passed over."""

    def __init__(self, content: str) -> None:
        self._content = content
        self._found = (m for m in _PARTS.finditer(content) if m.lastgroup)

    def text(self) -> str:
        """Return the next part, which is a text."""
        return self._next("text").replace('""', '"')

    def number(self) -> float:
        """Return the next part, which is a number."""
        text = self._next("number")
        if not math.isfinite(number := float(text)):
            raise _DamageError(f"{text} is not a finite number")
        return number

    def count(self) -> int:
        """Return the next part, which is a number of things."""
        return int(self.number())

    def _next(self, kind: str) -> str:
        part = next(self._found, None)
        if part is None:
            raise _DamageError(f"it ends where a {kind} is due")
        if part.lastgroup != kind:
            line = self._content.count("\n", 0, part.start()) + 1
            shown = part[0].partition("\n")[0][:40]
            raise _DamageError(f"line {line}: {shown} where a {kind} is due")
        return part[kind]


def _tiers(content: _Content) -> list[Tier]:
    """Read what a TextGrid holds."""
    form, kind = content.text(), content.text()
    if not form.startswith("ooTextFile") or kind != "TextGrid":
        raise _DamageError(f"it begins with {form[:40]!r}, {kind[:40]!r}")
    _ends(content)
    tiers: dict[str, Tier] = {}
    for _ in range(content.count()):
        kind, name = content.text(), content.text()
        _ends(content)
        size = content.count()
        if kind == "TextTier":
            for _ in range(size):
                content.number()
                content.text()
            continue
        if kind != "IntervalTier":
            raise _DamageError(f"a tier of class {kind[:40]!r}")
        found = [
            Interval(content.number(), content.number(), content.text().strip())
            for _ in range(size)
        ]
        unique, number = name, 2
        while unique in tiers:
            unique, number = f"{name}_{number}", number + 1
        tiers[unique] = Tier(unique, _in_order(found))
    return list(tiers.values())


def _ends(content: _Content) -> None:
    """Pass over the times where a tier, or all of them, begins and ends."""
    content.number()
    content.number()


def _in_order(intervals: list[Interval]) -> list[Interval]:
    """Return the intervals with a label, sorted by time.

    One that goes beyond the start of the next, by a rounding, ends there.
    """
    found: list[Interval] = []
    for one in sorted(interval for interval in intervals if interval.text):
        if one.end <= one.start:
            raise _DamageError(
                f"{one.text!r} begins at {one.start:g}, ends at {one.end:g}"
            )
        last = found[-1] if found else None
        if last is not None and last.end > one.start:
            if last.end > one.start + _ROUNDING or last.start >= one.start:
                both = f"{last.text!r} and {one.text!r}"
                raise _DamageError(f"overlap in time: {both} at {one.start:g}")
            found[-1] = last._replace(end=one.start)
        found.append(one)
    return found


def textgrid(tiers: Mapping[str, Sequence[Interval]], end: float) -> str:
    """Return a TextGrid in its long form.

    Args:
        tiers: intervals by name of the tier, in order of time, without overlap; times
            between them become intervals without a label.
        end: of the recording, seconds; no interval ends behind it.
    """
    lines = [
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\n'
        f"xmin = 0 \nxmax = {_number(end)} \n"
        f"tiers? <exists> \nsize = {len(tiers)} \nitem []: \n"
    ]
    for number, (name, intervals) in enumerate(tiers.items(), start=1):
        filled = list(_without_gaps(intervals, end))
        lines.append(
            f'    item [{number}]:\n        class = "IntervalTier" \n'
            f'        name = "{_quoted(name)}" \n'
            f"        xmin = 0 \n        xmax = {_number(end)} \n"
            f"        intervals: size = {len(filled)} \n"
        )
        lines += [
            f"        intervals [{i}]:\n            xmin = {start} \n"
            f'            xmax = {stop} \n            text = "{text}" \n'
            for i, (start, stop, text) in enumerate(filled, start=1)
        ]
    return "".join(lines)


def short_textgrid(tiers: Mapping[str, Sequence[Interval]], end: float) -> str:
    """Return a TextGrid in its short form, without the names of what it says.

    Args:
        tiers: as of `textgrid`.
        end: likewise.
    """
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', ""]
    lines += ["0", _number(end), "<exists>", str(len(tiers))]
    for name, intervals in tiers.items():
        filled = list(_without_gaps(intervals, end))
        lines += ['"IntervalTier"', f'"{_quoted(name)}"', "0", _number(end)]
        lines.append(str(len(filled)))
        lines += [f'{start}\n{stop}\n"{text}"' for start, stop, text in filled]
    return "\n".join(lines) + "\n"


def _without_gaps(
    intervals: Sequence[Interval], end: float
) -> Iterator[tuple[str, str, str]]:
    """Yield (start, end, label) as texts, from 0 to the end of the recording."""
    last = _number(0.0)
    for start, stop, text in intervals:
        first = _number(start)
        if first != last:
            yield last, first, ""
        last = _number(stop)
        yield first, last, _quoted(text)
    if last != _number(end):
        yield last, _number(end), ""


def _number(seconds: float) -> str:
    """Return a time to a tenth of a millisecond, without zeros at the end."""
    return f"{seconds:.4f}".rstrip("0").rstrip(".")


def _quoted(text: str) -> str:
    """Return a label as it stands between quotes."""
    return text.replace('"', '""')
