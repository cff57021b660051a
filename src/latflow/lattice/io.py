"""Lattices in Kaldi's archives, binary and text, streamed.

Kaldi writes a lattice as an OpenFst `vector` FST behind its key: arc type `lattice4`
for state-level lattices, `compactlattice44` for the compact form in which an arc is a
word with a string of transition-ids. Archives of both are read (binary, text, gzipped,
or through a list of places `key path:offset`, a `.scp` file), as whichever of the two
is asked for, and written. What Kaldi wrote is written back byte for byte.

Single lattices by their key: `latflow.lattice.random_access`.

Public: `read_lattices`, `read_compact_lattices`, `LatticeWriter`,
`CompactLatticeWriter`, `write_lattices`, `write_compact_lattices`.

Source: Kaldi `lat/kaldi-lattice.cc`, `util/kaldi-table-inl.h`.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Generic, Self, TypeVar, cast

from latflow.errors import UserError
from latflow.files import atomic_output, read_lines
from latflow.lattice import text_form
from latflow.lattice.binary_reading import LatticeStream
from latflow.lattice.binary_writing import as_bytes
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import Lattice
from latflow.lattice.parts import Parts
from latflow.lattice.places import read_place, read_places

Kind = TypeVar("Kind", Lattice, CompactLattice)


def read_lattices(path: str | Path) -> Iterator[tuple[str, Lattice]]:
    """Yield (utterance, lattice) of an archive in its order.

    Compact lattices are spread to arcs of at most one transition-id each.

    Args:
        path: binary or text archive, gunzipped if its name ends in `.gz`; or a list of
            places, if its name ends in `.scp`.

    Raises:
        UserError: the file is missing, truncated or of another kind, or a lattice has
            a cycle or paths of different lengths in frames.
    """
    for utterance, lattice in _read(Path(path)):
        is_compact = isinstance(lattice, CompactLattice)
        yield utterance, lattice.to_lattice() if is_compact else lattice


def read_compact_lattices(path: str | Path) -> Iterator[tuple[str, CompactLattice]]:
    """Yield (utterance, lattice) of an archive in its order.

    State-level lattices get one arc for each chain of arcs; they are not determinised.

    Args:
        path: as for `read_lattices`.

    Raises:
        UserError: as `read_lattices`.
    """
    for utterance, lattice in _read(Path(path)):
        is_raw = isinstance(lattice, Lattice)
        yield utterance, CompactLattice.from_lattice(lattice) if is_raw else lattice


def _read(path: Path) -> Iterator[tuple[str, Lattice | CompactLattice]]:
    """Yield what an archive or a list of places holds, each lattice as it is."""
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="check the path")
    for utterance, parts in _parts(path):
        try:
            yield utterance, parts.build()
        except UserError as error:
            raise UserError(
                error.what, file=path, utterance=utterance, remedy=error.remedy
            ) from None


def _parts(path: Path) -> Iterator[tuple[str, Parts]]:
    """Yield the contents of an archive or of a list of places."""
    if path.suffix == ".scp":
        for utterance, place in read_places(path):
            yield utterance, read_place(place)
        return
    with _opened(path, "rb") as stream:
        archive = LatticeStream(stream, path)
        if archive.at_end():
            return
        if archive.starts_binary():
            yield from archive.items()
            return
    yield from text_form.read(read_lines(path), path)


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """Open a file, packed if its name ends in `.gz` (then without a time stamp)."""
    if path.suffix == ".gz":
        with gzip.GzipFile(path, mode, compresslevel=6, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
    else:
        with path.open(mode) as stream:
            yield cast("IO[bytes]", stream)


class _Writer(Generic[Kind]):
    """Writes lattices to an open stream, one after the other.

    Args:
        stream: a file opened for writing bytes, at its start.
        binary: Kaldi's binary form, or its text form.
        places: where to note the place of each lattice: a text stream, and the name
            that the archive will have; None for nowhere.
    """

    def __init__(
        self,
        stream: IO[bytes],
        *,
        binary: bool = True,
        places: tuple[IO[str], str] | None = None,
    ) -> None:
        self._stream = stream
        self._binary = binary
        self._places = places
        self._position = 0

    def write(self, utterance: str, lattice: Kind) -> None:
        """Write one lattice."""
        key = f"{utterance} ".encode()
        if self._binary:
            raw = key + as_bytes(lattice)
        else:
            raw = text_form.as_text(utterance, lattice).encode()
        if self._places is not None:
            listing, name = self._places
            listing.write(f"{utterance} {name}:{self._position + len(key)}\n")
        self._stream.write(raw)
        self._position += len(raw)

    @classmethod
    @contextmanager
    def open(
        cls, path: str | Path, *, binary: bool = True, scp: str | Path | None = None
    ) -> Iterator[Self]:
        """Write an archive that appears whole at the end of the block, or not at all.

        Args:
            path: the archive; packed if its name ends in `.gz`.
            binary: Kaldi's binary form, or its text form.
            scp: also write a list of places in the archive, which names it as `path`
                does; None for none.

        Raises:
            UserError: a list of places in a packed archive is asked for.
        """
        if scp is not None and Path(path).suffix == ".gz":
            raise UserError(
                "a packed archive cannot be read at given places",
                file=path,
                remedy="give it a name that does not end in .gz",
            )
        listed = nullcontext(None) if scp is None else atomic_output(scp)
        with listed as list_path, atomic_output(path) as temporary:
            listing = None if list_path is None else list_path.open("w")
            with listing or nullcontext(), _opened(temporary, "wb") as stream:
                places = None if listing is None else (listing, str(path))
                yield cls(stream, binary=binary, places=places)


class LatticeWriter(_Writer[Lattice]):
    """Writes state-level lattices to an open stream, one after the other."""


class CompactLatticeWriter(_Writer[CompactLattice]):
    """Writes compact lattices to an open stream, one after the other."""


def write_lattices(
    path: str | Path,
    items: Iterable[tuple[str, Lattice]],
    *,
    binary: bool = True,
    scp: str | Path | None = None,
) -> None:
    """Write an archive of state-level lattices, whole or not at all.

    Args:
        path: the archive; packed if its name ends in `.gz`.
        items: (utterance, lattice).
        binary: Kaldi's binary form, or its text form.
        scp: also write a list of places in the archive; None for none.
    """
    with LatticeWriter.open(path, binary=binary, scp=scp) as writer:
        for utterance, lattice in items:
            writer.write(utterance, lattice)


def write_compact_lattices(
    path: str | Path,
    items: Iterable[tuple[str, CompactLattice]],
    *,
    binary: bool = True,
    scp: str | Path | None = None,
) -> None:
    """Write an archive of compact lattices, whole or not at all.

    Args:
        path: the archive; packed if its name ends in `.gz`.
        items: (utterance, lattice).
        binary: Kaldi's binary form, or its text form.
        scp: also write a list of places in the archive; None for none.
    """
    with CompactLatticeWriter.open(path, binary=binary, scp=scp) as writer:
        for utterance, lattice in items:
            writer.write(utterance, lattice)
