"""Why a job runs again: the option, the code or the files that are others now.

Snakemake shows all params that differ, as a whole: a mapping of thirty options before
and after, or two digests. Here it is what differs between the two.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from snakemake.persistence import ParamsChange

from latflow.workflow.contents import Listings

_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_LONGEST = 60  # characters of a value that are shown
_MOST = 6  # differences that are shown
_MOST_FILES = 3  # of a folder that are named
_ABSENT = object()


def name_changes() -> None:
    """Make this process's Snakemake name what differs between params."""

    def text(change: ParamsChange) -> str:
        """Return the line on changed params."""
        return describe(change.only_old, change.only_new)

    setattr(ParamsChange, "__str__", text)  # noqa: B010 - Snakemake's own


def describe(before: Iterable[str], now: Iterable[str]) -> str:
    """Return what differs between the params of a job, in one line.

    Args:
        before: params that it had and has no more, as Snakemake writes them (`repr`).
        now: params that it has and had not.
    """
    left = [_value(text) for text in sorted(before)]
    found: list[str] = []
    for new in map(_value, sorted(now)):
        old = max(left, key=lambda other: _likeness(other, new), default=_ABSENT)
        if old is not _ABSENT and _likeness(old, new) > 0:
            left.remove(old)
        else:
            old = _ABSENT
        found += _differences(old, new, "")
    for old in left:
        found += _differences(old, _ABSENT, "")
    more = f", and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return "; ".join(found[:_MOST]) + more


def _value(text: str) -> Any:
    """Return the value of a `repr`, or the text if it is not one."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _likeness(one: Any, other: Any) -> float:
    """Return how much alike two params are; 0 if they can't be the same one."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one.keys() & other.keys()) / max(1, len(one.keys() | other.keys()))
    if isinstance(one, str) and isinstance(other, str):
        return float(one.split(" ")[0] == other.split(" ")[0]) + 0.1
    return 0.1 * (type(one) is type(other))


def _differences(old: Any, new: Any, key: str) -> Iterator[str]:
    """Yield what differs between two values.

    Args:
        old: `_ABSENT` where there was none.
        new: likewise.
        key: of the value in those around it.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            one, other = old.get(name, _ABSENT), new.get(name, _ABSENT)
            if one is _ABSENT or other is _ABSENT or one != other:
                yield from _differences(one, other, f"{key}.{name}" if key else name)
        return
    if isinstance(old, str) and isinstance(new, str) and (what := _digested(old, new)):
        yield what
        return
    yield f"{f'{key}: ' if key else ''}{_short(old)} -> {_short(new)}"


def _digested(old: str, new: str) -> str:
    """Return what two texts with digests are about; empty for other texts."""
    one, other = old.split(" "), new.split(" ")
    if one[0] != other[0] or not any(map(_DIGEST.fullmatch, one[1:])):
        return ""
    if re.fullmatch(r"latflow(\.\w+)+", one[0]):
        return f"code that {one[0]} reaches"
    pairs = zip(one, one[1:], other[1:], strict=False)
    changed = [
        _changed_files(folder, before, now)
        for folder, before, now in pairs
        if before != now
    ]
    return f"files below {', '.join(changed)}"


def _changed_files(folder: str, before: str, now: str) -> str:
    """Return a folder with the files that differ, where these are known."""
    names = Listings().differences(folder, before, now)
    more = f" and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
    shown = ", ".join(names[:_MOST_FILES])
    return f"{folder} ({shown}{more})" if names else folder


def _short(value: Any) -> str:
    """Return a value for one line."""
    if value is _ABSENT:
        return "(nothing)"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
