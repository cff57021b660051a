"""Single lattices of an archive, by their utterance.

Public: `LatticeArchive`.

Source: Kaldi `util/kaldi-table-inl.h` (`RandomAccessTableReader`).
"""

from __future__ import annotations

from pathlib import Path

from latflow.errors import UserError
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import Lattice
from latflow.lattice.places import find_places, read_place, read_places


class LatticeArchive:
    """The lattices of an archive, read when asked for; safe to share by threads.

    A list of places (`.scp`) is read at once; an archive is passed over once to find
    where its lattices begin. Memory holds the places only.

    Args:
        path: the list of places, or a binary or text archive that is not packed.

    Attributes:
        utterances: their keys, in the order of the file.

    Raises:
        UserError: the file is missing, packed, truncated or of another kind, or an
            utterance comes twice.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise UserError("no such file", file=path, remedy="check the path")
        if self._path.suffix == ".gz":
            raise UserError(
                "a packed archive cannot be read at given places",
                file=path,
                remedy="unpack it with gunzip",
            )
        is_list = self._path.suffix == ".scp"
        self._places = {}
        for utterance, place in (read_places if is_list else find_places)(self._path):
            if utterance in self._places:
                raise UserError(
                    "the utterance comes twice",
                    file=path,
                    utterance=utterance,
                    remedy="remove one of the two",
                )
            self._places[utterance] = place
        self.utterances = tuple(self._places)

    def __len__(self) -> int:
        return len(self.utterances)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self._places

    def lattice(self, utterance: str) -> Lattice:
        """Read a lattice; a compact one is spread out.

        Raises:
            UserError: there is none, or its file is missing or truncated, or it has a
                cycle or paths of different lengths in frames.
        """
        found = self._read(utterance)
        return found.to_lattice() if isinstance(found, CompactLattice) else found

    def compact(self, utterance: str) -> CompactLattice:
        """Read a lattice; a state-level one gets an arc for each chain of arcs.

        Raises:
            UserError: as `lattice`.
        """
        found = self._read(utterance)
        is_raw = isinstance(found, Lattice)
        return CompactLattice.from_lattice(found) if is_raw else found

    def _read(self, utterance: str) -> Lattice | CompactLattice:
        """Read a lattice as it is."""
        if utterance not in self._places:
            raise UserError(
                "no lattice of this utterance",
                file=self._path,
                utterance=utterance,
                remedy="decode it, or take it off the list",
            )
        place = self._places[utterance]
        try:
            return read_place(place).build()
        except UserError as error:
            file = error.file or place.path
            raise UserError(
                error.what, file=file, utterance=utterance, remedy=error.remedy
            ) from None
