"""Praat's TextGrids: tiers of labelled intervals, read and written.

Reading is praatio's, which knows all of Praat's text forms and encodings. Writing is
our own: the long form, some hundred times faster than building praatio's objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from latflow.errors import UserError


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

    Raises:
        UserError: the file is missing or no TextGrid.
    """
    # Imported here: stages that only write TextGrids do without.
    from praatio import textgrid as praat
    from praatio.data_classes.interval_tier import IntervalTier
    from praatio.utilities.constants import Interval as PraatInterval
    from praatio.utilities.errors import PraatioException

    if not Path(path).is_file():
        raise UserError("no such file", file=path, remedy="check the path")
    if not Path(path).stat().st_size:
        raise UserError("is empty (0 bytes)", file=path, remedy="restore the file")
    try:
        grid = praat.openTextgrid(
            str(path),
            includeEmptyIntervals=False,
            reportingMode="silence",
            duplicateNamesMode="rename",
        )
    except UnicodeDecodeError as error:
        raise UserError(
            f"is neither UTF-8 nor UTF-16 (byte {error.start + 1})",
            file=path,
            remedy="convert the file to UTF-8, e.g. with iconv",
        ) from None
    except (PraatioException, ValueError, IndexError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"not a TextGrid, or damaged ({reason or type(error).__name__})",
            file=path,
            remedy="mend it in Praat, and save it as a text file (long or short)",
        ) from None
    return [
        Tier(
            tier.name,
            [
                Interval(float(entry.start), float(entry.end), entry.label.strip())
                for entry in tier.entries
                if isinstance(entry, PraatInterval)
            ],
        )
        for tier in grid.tiers
        if isinstance(tier, IntervalTier)
    ]


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
