"""Sizes of a stage's archives, in its record: what is read later is what was written.

An archive of Kaldi's has no end that tells of itself: cut between two entries, or
empty, it looks whole, and results would count what is left. So the record of a stage
(`decode.json`, `statistics.json`, ...) has the sizes of the archives beside it, and
readers compare. Archives that no record knows, Kaldi's for one, are read as they are.

Public: `archive_sizes`, `check_archive`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from latflow.errors import UserError

_KEY = "archives"
_RECORDS = ("decode.json", "rescore.json", "statistics.json", "part.json")


def archive_sizes(folder: str | Path) -> dict[str, Any]:
    """Return what the record of a stage says of the archives in its folder.

    Args:
        folder: with all archives (`*.ark`) whole.

    Returns:
        One key, for the record: bytes of each archive, by its name.
    """
    return {
        _KEY: {p.name: p.stat().st_size for p in sorted(Path(folder).glob("*.ark"))}
    }


def check_archive(path: str | Path) -> None:
    """Refuse an archive that is not the one that its stage has written.

    Args:
        path: the archive; where no record tells of it, nothing is refused.

    Raises:
        UserError: it has another size than the record beside it says.
    """
    source = Path(path)
    if source.suffix != ".ark" or not source.is_file():
        return
    size = source.stat().st_size
    for record in _RECORDS:
        wanted = _told(source.with_name(record)).get(source.name, size)
        if wanted != size:
            raise UserError(
                f"has {size} bytes, and the stage that wrote it says {wanted!r} in "
                f"{record}: it was cut or changed",
                file=source,
                remedy="remove it, and run the stage again",
            )


def _told(record: Path) -> dict[str, Any]:
    """Return the sizes that a record tells; none where there are none."""
    try:
        told = json.loads(record.read_bytes())[_KEY]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
