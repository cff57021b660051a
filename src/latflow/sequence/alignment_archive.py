"""Alignments of a corpus from `ali.ark`, read through a memory map.

The archive stays as the alignment stage wrote it; opening it finds where each utterance
begins, and an alignment is copied out when it is asked for. Ranks and threads that read
the same archive share its pages.

Public: `AlignmentArchive`.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.kaldi_io import BINARY_MARK

_LENGTH = struct.Struct("<bi")  # width in bytes of the number that follows, number
_ITEM = np.dtype([("width", "i1"), ("value", "<i4")])


class AlignmentArchive:
    """Transition-ids by utterance; safe to share between threads.

    Args:
        paths: binary Kaldi archives of integer vectors; where two have an utterance,
            the later one's counts.

    Raises:
        UserError: no such file, or it is something else or truncated.
    """

    def __init__(self, *paths: str | Path) -> None:
        self._place: dict[str, tuple[mmap.mmap, int, int]] = {}
        for path in map(Path, paths):
            if not path.is_file():
                remedy = "align the data first"
                raise UserError("no such file", file=path, remedy=remedy)
            if path.stat().st_size:
                with path.open("rb") as stream:
                    mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
                self._index(path, mapped)

    def _index(self, path: Path, mapped: mmap.mmap) -> None:
        """Note where the vectors of an archive lie."""
        at = 0
        while at < len(mapped):
            blank = mapped.find(b" ", at)
            begin = blank + 1 + len(BINARY_MARK)
            is_binary = blank >= 0 and mapped[blank + 1 : begin] == BINARY_MARK
            if not is_binary or begin + _LENGTH.size > len(mapped):
                _refuse(path)
            width, count = _LENGTH.unpack_from(mapped, begin)
            begin += _LENGTH.size
            end = begin + count * _ITEM.itemsize
            if width != 4 or count < 0 or end > len(mapped):
                _refuse(path)
            self._place[mapped[at:blank].decode()] = (mapped, begin, count)
            at = end

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, utterance: str) -> bool:
        return utterance in self._place

    def get(self, utterance: str) -> np.ndarray | None:
        """Transition-ids of an utterance, int32[T]; None if it is not there."""
        place = self._place.get(utterance)
        if place is None:
            return None
        mapped, begin, count = place
        items = np.frombuffer(mapped, _ITEM, count, begin)
        return items["value"].astype(np.int32)


def _refuse(path: Path) -> NoReturn:
    raise UserError(
        "not a binary archive of integer vectors, or truncated",
        file=path,
        remedy="make it with latflow's alignment stage, or with Kaldi's "
        "copy-int-vector ark:... ark:...",
    )
