"""Utterances that a function of the user's own gives.

For example, in `corpora.py`:

    def calls(folder):
        for line in open(f"{folder}/index.txt"):
            name, agent, words = line.rstrip().split("|")
            yield {"audio": f"{folder}/{name}.opus", "text": words, "speaker": agent}

and in the recipe

    {type: custom, path: "corpora.py:calls", arguments: {folder: /data}}
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from latflow.corpus.listing import Fault, Listing, Part, file_id
from latflow.corpus.options import CustomSource
from latflow.errors import UserError
from latflow.user_code import load_object

_KEYS = ("audio", "text", "speaker", "start", "end", "id")
_REMEDY = "see docs/development.md on a corpus of your own"


def list_custom(source: CustomSource, listing: Listing) -> None:
    """List the utterances of a function.

    Raises:
        UserError: the function cannot be loaded, fails, or gives no utterance. What is
            wrong with one utterance alone is a fault of the listing.
    """
    recordings: dict[Path, str] = {}
    number = 0
    for number, row in enumerate(_rows(source), start=1):
        try:
            _list_row(source, listing, recordings, row, number)
        except UserError as error:
            name = error.utterance or f"utterance-{number}"
            remedy = error.remedy or _REMEDY
            listing.faults.append(Fault(name, error.what, source.path, remedy))
    if not number:
        raise UserError("gives no utterance", file=source.path, remedy=_REMEDY)


def _rows(source: CustomSource) -> Iterator[Any]:
    """Yield what the function gives.

    Raises:
        UserError: it cannot be loaded, or fails.
    """
    try:
        function = load_object(source.path)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        what = f"cannot be loaded: {error}"
        raise UserError(what, file=source.path, remedy=_REMEDY) from error
    try:
        found = function(**source.arguments)
        if not isinstance(found, Iterable):
            raise UserError("is not an iterable", file=source.path, remedy=_REMEDY)
        yield from found
    except UserError:
        raise
    except Exception as error:
        what = f"fails: {type(error).__name__}: {error}"
        raise UserError(what, file=source.path, remedy=_REMEDY) from error


def _list_row(
    source: CustomSource,
    listing: Listing,
    recordings: dict[Path, str],
    row: Any,
    number: int,
) -> None:
    """List an utterance.

    Args:
        recordings: their ids by path, so far.
        row: what the function gave.
        number: of the utterance, from 1.

    Raises:
        UserError: it is not what the function is to give.
    """
    if not isinstance(row, Mapping) or not {*row} <= {*_KEYS}:
        keys = ", ".join(map(str, row)) if isinstance(row, Mapping) else repr(row)
        raise UserError(f"no mapping of {', '.join(_KEYS)}: {keys}")
    path = Path(os.path.abspath(_text(row, "audio")))
    start, end = _seconds(row, "start") or 0.0, _seconds(row, "end")
    if end is not None and end <= start:
        raise UserError(f"ends at {end:g} s, before it begins, at {start:g} s")
    text = _text(row, "text") if source.transcripts else ""
    speaker = _text(row, "speaker") if row.get("speaker") is not None else None
    if path not in recordings:
        if not path.is_file():
            raise UserError(
                f"audio file does not exist: {path}",
                utterance=_name(row, path),
                remedy="restore the file, or leave it out",
            )
        inside = Path(os.path.relpath(path))
        inside = Path(*(part for part in inside.parts if part not in {"/", ".."}))
        recordings[path] = listing.add_file(path, inside)
    where = f"{source.path} utterance {number}"
    is_whole = start == 0.0 and end is None
    given = _text(row, "id") if row.get("id") is not None else ""
    part = Part("", recordings[path], text, speaker, where, start, end)
    if given:
        if given in listing.parts:
            raise UserError("another utterance has this id", utterance=given)
        part.id = given
        listing.parts.add(part, file=part.origin)
        return
    part.id = "" if is_whole else f"-{round(1000 * start):08d}"
    listing.add_part(part, recordings[path])


def _name(row: Mapping[str, Any], path: Path) -> str:
    """Return what a message calls an utterance."""
    return str(row.get("id") or file_id(Path(path.name)))


def _text(row: Mapping[str, Any], key: str) -> str:
    """Return a text of an utterance; a path may be one of pathlib."""
    value = row.get(key)
    if isinstance(value, str | Path) and str(value).strip():
        return str(value)
    if key == "text" and isinstance(value, str):
        return value  # an empty transcript is judged with the others
    raise UserError(f"{key} is {value!r}, not a text")


def _seconds(row: Mapping[str, Any], key: str) -> float | None:
    """Return a time of an utterance; None without one."""
    value = row.get(key)
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(f"{key} is {value!r}, not a time in seconds")
    return seconds
