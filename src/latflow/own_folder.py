"""Folders that are written as a whole, over nothing but what was written there before.

Imports next to nothing: the command line checks folders before it loads what writes
them.
"""

from __future__ import annotations

from pathlib import Path

from latflow.errors import UserError

#: Marks of packages; Snakemake removes `package.json` before a job writes it again.
PACKAGE = ("model/final.mdl", "model/*.json", "lang/words.txt")


def check_own_folder(path: str | Path, *marks: str) -> None:
    """Refuse to write a folder as a whole where there is something of others.

    Args:
        path: the folder; must be new, empty, or what was written there before.
        marks: patterns of names in a folder that was, each of which one there must
            fit; without any it must be new or empty.

    Raises:
        UserError: it is a file, or holds something else.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UserError("is not a folder", file=path, remedy="name a new folder")
    held = sorted(inner.name for inner in folder.iterdir()) if folder.is_dir() else []
    is_own = marks and all(any(folder.glob(mark)) for mark in marks)
    if held and not is_own:
        raise UserError(
            f"is not empty (it holds {held[0]}), and would be replaced as a whole",
            file=path,
            remedy="name a new folder",
        )
