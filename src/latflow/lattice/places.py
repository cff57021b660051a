"""Where lattices lie: lists of places (Kaldi's scp files), and one lattice at a place.

A line of such a list is `key path:offset`: the lattice starts at that byte of the file,
behind its key. Without an offset the file holds one lattice and no key. Paths are
relative to the working folder, as with Kaldi; one that is not there is looked for
beside the list.

Public: `Place`, `read_places`, `find_places`, `read_place`.

Source: Kaldi `util/kaldi-io.cc` (`ClassifyRxfilename`), `util/kaldi-table-inl.h`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from latflow.errors import UserError
from latflow.files import read_lines
from latflow.lattice import text_form
from latflow.lattice.binary_reading import MAGIC, LatticeStream
from latflow.lattice.parts import Parts

_BEHIND_PATH = re.compile(r"^(.+):(\d+)$")


class Place(NamedTuple):
    """Where a lattice starts.

    Attributes:
        path: the file.
        offset: its first byte behind the key.
    """

    path: Path
    offset: int


def read_places(path: Path) -> Iterator[tuple[str, Place]]:
    """Yield (utterance, place) of a list of places.

    Raises:
        UserError: a line is no entry, or asks for a command to be run.
    """
    for number, line in read_lines(path):
        utterance, _, where = line.strip().partition(" ")
        where = where.strip()
        if not where or where.endswith("|") or where.startswith("|"):
            raise UserError(
                f"line {number}: no entry of the form `key path:offset`",
                file=path,
                remedy="write the lattices to an archive and a list of places in it",
            )
        found = _BEHIND_PATH.match(where)
        name, offset = (found[1], int(found[2])) if found else (where, 0)
        beside = path.parent / name
        exists_only_beside = not Path(name).is_file() and beside.is_file()
        yield utterance, Place(beside if exists_only_beside else Path(name), offset)


def find_places(path: Path) -> Iterator[tuple[str, Place]]:
    """Yield (utterance, place) of all lattices of an archive, reading it once.

    Args:
        path: binary or text archive, not packed.

    Raises:
        UserError: the archive is truncated or of another kind.
    """
    with path.open("rb") as stream:
        archive = LatticeStream(stream, path)
        if not archive.at_end() and archive.starts_binary():
            while not archive.at_end():
                utterance = archive.key()
                yield utterance, Place(path, archive.position)
                archive.skip()
            return
        stream.seek(0)
        yield from _find_in_text(stream, path)


def _find_in_text(stream: IO[bytes], path: Path) -> Iterator[tuple[str, Place]]:
    """Yield the places of a text archive: a key follows an empty line."""
    position, is_key_next = 0, True
    for raw in stream:
        fields = raw.split()
        if fields and is_key_next:
            key = fields[0]
            end = raw.index(key) + len(key)
            yield key.decode("utf-8", "replace"), Place(path, position + end)
        is_key_next = not fields
        position += len(raw)


def read_place(place: Place) -> Parts:
    """Read the lattice at a place.

    Raises:
        UserError: the file is missing or truncated, or there is no lattice there.
    """
    path, offset = place
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="check the path")
    with path.open("rb") as stream:
        stream.seek(offset)
        start = stream.read(len(MAGIC))
        stream.seek(offset)
        if start == MAGIC:
            return LatticeStream(stream, path, offset).lattice()
        for _, parts in text_form.read(_text_lines(stream, path), path):
            if start:
                return parts
    raise UserError(
        f"no lattice at byte {offset}",
        file=path,
        remedy="make the list of places again",
    )


def _text_lines(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str]]:
    """Yield a key, which `text_form` wants, and the lines of one lattice behind it."""
    yield 0, path.name.replace(" ", "_")
    for number, raw in enumerate(stream):
        line = raw.decode("utf-8", "replace")
        if number or line.strip():
            yield number, line
        if number and not line.strip():
            return
