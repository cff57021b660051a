"""Lattices in Kaldi's archives, binary and text, streamed or by utterance.

Kaldi writes a lattice as an OpenFst `vector` FST behind its key: arc type `lattice4`
for state-level lattices, `compactlattice44` for the compact form in which an arc is a
word with a string of transition-ids. Archives of both are read (binary, text, gzipped,
or through an scp file), as whichever of the two is asked for, and written. Lattices
that Kaldi wrote are written back byte for byte.

A line of an scp file is `key path:offset`: the lattice starts at that byte of the file,
behind its key. Without an offset the file holds one lattice and no key. Paths are
relative to the working folder, as with Kaldi; one that is not there is looked for
beside the scp file.

Source: Kaldi `lat/kaldi-lattice.cc`, `util/kaldi-table-inl.h`
(`RandomAccessTableReader`), `util/kaldi-io.cc` (`ClassifyRxfilename`).
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

from latflow.archive_sizes import Entries, checked_entries
from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.lattice.io import text
from latflow.lattice.io.binary import MAGIC, LatticeStream, as_bytes
from latflow.lattice.io.text import Maker
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.parallel import in_order, worker_pool
from latflow.text_files import read_lines

Result = TypeVar("Result")

_PATH_AND_OFFSET = re.compile(r"^(.+):(\d{1,18})$")


def read_lattices(path: str | Path) -> Iterator[tuple[str, Lattice]]:
    """Yield (utterance, lattice) of an archive in its order.

    Compact lattices are expanded to arcs of at most one transition-id each.

    Args:
        path: binary or text archive, gunzipped if its name ends in `.gz`; or an scp
            file, if its name ends in `.scp`.

    Raises:
        UserError: the file is missing, truncated or of another kind, or a lattice has
            a cycle or paths of different lengths in frames.
    """
    for utterance, lattice in _read(Path(path)):
        yield utterance, lattice.to_lattice()


def read_compact_lattices(path: str | Path) -> Iterator[tuple[str, CompactLattice]]:
    """Yield (utterance, lattice) of an archive in its order.

    State-level lattices get one arc for each linear path; they are not determinized.

    Args:
        path: as for `read_lattices`.

    Raises:
        UserError: as `read_lattices`.
    """
    for utterance, lattice in _read(Path(path)):
        yield utterance, lattice.to_compact()


@contextmanager
def map_lattices(
    path: str | Path,
    work: Callable[[str, Any], Result],
    *,
    threads: int,
    compact: bool = False,
) -> Iterator[Iterator[tuple[str, Result]]]:
    """Give (utterance, work(utterance, lattice)) of each lattice, in order.

    Args:
        path: as for `read_lattices`.
        work: safe to call from several threads.
        threads: lattices at a time.
        compact: whether `work` takes compact lattices; raw ones if not.

    Raises:
        UserError: what `work` raised, with file and utterance.
    """

    def named(item: tuple[str, Lattice | CompactLattice]) -> tuple[str, Result]:
        utterance, lattice = item
        try:
            return utterance, work(utterance, lattice)
        except UserError as error:
            raise error.at(file=error.file or path, utterance=utterance) from None

    with worker_pool(threads) as pool:
        lattices = read_compact_lattices(path) if compact else read_lattices(path)
        yield in_order(pool, named, lattices, ahead=2 * threads)


class LatticeArchive:
    """The lattices of an archive, read when asked for; safe to share by threads.

    An scp file is read at once; an archive is passed over once to find where its
    lattices begin. Memory holds their offsets only.

    Args:
        path: an scp file, or a binary or text archive that is not gzipped.

    Attributes:
        utterances: their keys, in the order of the file.

    Raises:
        UserError: the file is missing, gzipped, truncated or of another kind, or an
            utterance comes twice.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise UserError("no such file", file=path, remedy="check the path")
        if self._path.suffix == ".gz":
            raise UserError(
                "a gzipped archive cannot be read at given offsets",
                file=path,
                remedy="unpack it with gunzip",
            )
        find = _read_scp if self._path.suffix == ".scp" else _offsets
        self._found: dict[str, _Offset] = {}
        for utterance, offset in checked_entries(self._path, find(self._path)):
            if utterance in self._found:
                raise UserError(
                    "the utterance comes twice",
                    file=path,
                    utterance=utterance,
                    remedy="remove one of the two",
                )
            self._found[utterance] = offset
        self.utterances = tuple(self._found)

    def __len__(self) -> int:
        return len(self.utterances)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self._found

    def lattice(self, utterance: str) -> Lattice:
        """Read a lattice as a state-level one.

        Raises:
            UserError: none was found, or its file is missing or truncated, or it has a
                cycle or paths of different lengths in frames.
        """
        return self._read(utterance).to_lattice()

    def compact(self, utterance: str) -> CompactLattice:
        """Read a lattice as a compact one.

        Raises:
            UserError: as `lattice`.
        """
        return self._read(utterance).to_compact()

    def _read(self, utterance: str) -> Lattice | CompactLattice:
        if utterance not in self._found:
            raise UserError(
                "no lattice of this utterance",
                file=self._path,
                utterance=utterance,
                remedy="decode it, or take it off the list",
            )
        offset = self._found[utterance]
        try:
            return _read_at(offset)()
        except UserError as error:
            file = error.file or offset.path
            raise error.at(file=file, utterance=utterance) from None


class LatticeWriter:
    """Write lattices, of either kind, to an open stream, one after the other.

    Args:
        stream: a file opened for writing bytes, at its start.
        binary: Kaldi's binary form, or its text form.
        scp: where to list the lattices: a text stream, and the name that the archive
            will have; None for nowhere.

    Attributes:
        entries: what has been written.
    """

    def __init__(
        self,
        stream: IO[bytes],
        *,
        binary: bool = True,
        scp: tuple[IO[str], str] | None = None,
    ) -> None:
        self._stream = stream
        self._binary = binary
        self._scp = scp
        self._position = 0
        self.entries = Entries()

    def write(self, utterance: str, lattice: Lattice | CompactLattice) -> None:
        """Write one lattice."""
        key = f"{utterance} ".encode()
        if self._binary:
            raw = key + as_bytes(lattice)
        else:
            raw = text.as_text(utterance, lattice).encode()
        if self._scp is not None:
            listing, name = self._scp
            listing.write(f"{utterance} {name}:{self._position + len(key)}\n")
        self._stream.write(raw)
        self._position += len(raw)
        self.entries.add(utterance)

    @classmethod
    @contextmanager
    def open(
        cls, path: str | Path, *, binary: bool = True, scp: str | Path | None = None
    ) -> Iterator[LatticeWriter]:
        """Write an archive that appears whole at the end of the block, or not at all.

        Args:
            path: the archive; gzipped if its name ends in `.gz`.
            binary: Kaldi's binary form, or its text form.
            scp: also write an scp file of the archive, which names it as `path` does;
                None for none.

        Raises:
            UserError: an scp file of a gzipped archive is asked for.
        """
        if scp is not None and Path(path).suffix == ".gz":
            raise UserError(
                "a gzipped archive cannot be read at given offsets",
                file=path,
                remedy="give it a name that does not end in .gz",
            )
        listed = nullcontext(None) if scp is None else atomic_output(scp)
        with listed as list_path, atomic_output(path) as temporary:
            listing = None if list_path is None else list_path.open("w")
            with listing or nullcontext(), opened(temporary, "wb") as stream:
                target = None if listing is None else (listing, str(path))
                yield cls(stream, binary=binary, scp=target)


def write_lattices(
    path: str | Path,
    items: Iterable[tuple[str, Lattice | CompactLattice]],
    *,
    binary: bool = True,
    scp: str | Path | None = None,
) -> Entries:
    """Write an archive of lattices of either kind atomically.

    Args:
        path: the archive; gzipped if its name ends in `.gz`.
        items: (utterance, lattice).
        binary: Kaldi's binary form, or its text form.
        scp: also write an scp file of the archive; None for none.

    Returns:
        What has been written.
    """
    with LatticeWriter.open(path, binary=binary, scp=scp) as writer:
        for utterance, lattice in items:
            writer.write(utterance, lattice)
    return writer.entries


@contextmanager
def opened(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """Open a file, gzipped if its name ends in `.gz` (then without a time stamp)."""
    if path.suffix == ".gz":
        with gzip.GzipFile(path, mode, compresslevel=6, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    else:
        with path.open(mode) as stream:
            yield cast("IO[bytes]", stream)


def _read(path: Path) -> Iterator[tuple[str, Lattice | CompactLattice]]:
    """Yield the lattices of an archive or of an scp file, each as it is."""
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="check the path")
    for utterance, make in checked_entries(path, _makers(path)):
        try:
            yield utterance, make()
        except UserError as error:
            raise error.at(file=path, utterance=utterance) from None


def _makers(path: Path) -> Iterator[tuple[str, Maker]]:
    """Yield (utterance, what makes the lattice) of an archive or of an scp file."""
    if path.suffix == ".scp":
        for utterance, offset in _read_scp(path):
            yield utterance, _read_at(offset)
        return
    with opened(path, "rb") as stream:
        archive = LatticeStream(stream, path)
        if archive.at_end() or archive.starts_binary():
            while not archive.at_end():
                yield archive.key(), archive.lattice()
            return
    yield from text.read(read_lines(path), path)


class _Offset(NamedTuple):
    """A file and the first byte of a lattice in it, behind its key."""

    path: Path
    offset: int


def _read_scp(path: Path) -> Iterator[tuple[str, _Offset]]:
    """Yield (utterance, offset) of an scp file.

    Raises:
        UserError: a line is not an entry, or asks for a command to be run.
    """
    for number, line in read_lines(path):
        utterance, _, where = line.strip().partition(" ")
        where = where.strip()
        if not where or where.endswith("|") or where.startswith("|"):
            raise UserError(
                f"line {number}: no entry of the form `key path:offset`",
                file=path,
                remedy="write the lattices to an archive and an scp file of it",
            )
        found = _PATH_AND_OFFSET.match(where)
        name, offset = (found[1], int(found[2])) if found else (where, 0)
        beside = path.parent / name
        # unlike Path.is_file, os.path takes names of any length
        exists_only_beside = not os.path.isfile(name) and os.path.isfile(beside)
        yield utterance, _Offset(beside if exists_only_beside else Path(name), offset)


def _offsets(path: Path) -> Iterator[tuple[str, _Offset]]:
    """Yield (utterance, offset) of all lattices of an archive, reading it once."""
    with path.open("rb") as stream:
        archive = LatticeStream(stream, path)
        if not archive.at_end() and archive.starts_binary():
            while not archive.at_end():
                utterance = archive.key()
                yield utterance, _Offset(path, archive.position)
                archive.skip()
            return
        stream.seek(0)
        position, is_key_next = 0, True
        for raw in stream:  # of a text archive: a key follows an empty line
            fields = raw.split()
            if fields and is_key_next:
                end = raw.index(fields[0]) + len(fields[0])
                key = fields[0].decode("utf-8", "replace")
                yield key, _Offset(path, position + end)
            is_key_next = not fields
            position += len(raw)


def _read_at(where: _Offset) -> Maker:
    """Read the lattice at an offset.

    Raises:
        UserError: the file is missing or truncated, or there is no lattice there.
    """
    path, offset = where
    if not os.path.isfile(path):
        raise UserError("no such file", file=path, remedy="check the path")
    if offset < path.stat().st_size:
        with path.open("rb") as stream:
            stream.seek(offset)
            start = stream.read(len(MAGIC))
            stream.seek(offset)
            if start == MAGIC:
                return LatticeStream(stream, path, offset).lattice()
            for _, make in text.read(_text_lines(stream, path), path):
                return make
    raise UserError(
        f"no lattice at byte {offset}", file=path, remedy="make the scp file again"
    )


def _text_lines(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str]]:
    """Yield a key, which `text.read` wants, and the lines of one lattice behind it."""
    yield 0, path.name.replace(" ", "_")
    for number, raw in enumerate(stream):
        line = raw.decode("utf-8", "replace")
        if number or line.strip():
            yield number, line
        if number and not line.strip():
            return
