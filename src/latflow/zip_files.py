"""Chosen files of a zip archive that others made, by their names alone.

Whatever else an archive holds, and wherever it would put it, nothing is written but
these files, into the folder that is given.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from latflow.errors import UserError
from latflow.files import reading

_PART = 1 << 20
# A file that a model of MFA's has, what it then is, and who takes it.
_KINDS = {
    "final.mdl": ("an acoustic model", "latflow import-mfa takes it"),
    "model.fst": ("a G2P model", "latflow g2p apply and --g2p take it"),
}


def unpack_files(
    archive: Path,
    folder: Path,
    names: Mapping[str, int],
    needed: Sequence[str],
    remedy: str,
) -> None:
    """Write the named files of the one folder of an archive that has what is needed.

    Args:
        archive: the zip file.
        folder: where to, flat.
        names: of the files -> the most bytes that they may have, unpacked.
        needed: those that must be there; the first is in one folder of the archive
            only.
        remedy: for messages.

    Raises:
        UserError: the archive is damaged, lacks a file, has the first one twice, or a
            file is too large.
    """
    with (
        reading(archive, "no whole zip file", remedy),
        zipfile.ZipFile(archive) as opened,
    ):
        for name, member in _members(opened, archive, names, needed, remedy).items():
            written = 0
            with opened.open(member) as stream, (folder / name).open("wb") as target:
                while part := stream.read(_PART):
                    written += len(part)
                    if written > names[name]:
                        raise UserError(
                            f"{name} has more than {names[name]} bytes",
                            file=archive,
                            remedy=remedy,
                        )
                    target.write(part)


def _members(
    opened: zipfile.ZipFile,
    archive: Path,
    names: Mapping[str, int],
    needed: Sequence[str],
    remedy: str,
) -> dict[str, zipfile.ZipInfo]:
    """Return the named files of the folder that has the first needed one."""
    folders: dict[PurePosixPath, dict[str, zipfile.ZipInfo]] = {}
    for member in opened.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        if path.name in names and not member.is_dir():
            folders.setdefault(path.parent, {})[path.name] = member
    first = needed[0]
    found = [files for files in folders.values() if first in files]
    fault = None
    if not found:
        fault = f"no {first} in it"
        there = {PurePosixPath(name).name for name in opened.namelist()}
        if others := [kind for name, kind in _KINDS.items() if name in there]:
            fault, remedy = f"{fault}: it is {others[0][0]}", others[0][1]
    elif len(found) > 1:
        fault = f"{len(found)} folders with {first}"
    elif missing := [name for name in needed if name not in found[0]]:
        fault = f"no {missing[0]} beside {first}"
    if fault:
        raise UserError(fault, file=archive, remedy=remedy)
    return found[0]
