"""Keep mapped files within a number of bytes of memory: the next is read ahead.

Data read from a mapped file lies in the operating system's page cache, which all
processes share. A `PageBudget` keeps no copy of it: it advises the system which pages
are needed next (they are read in the background), and lets those go that were asked for
longest ago, out of the process and out of the page cache. So values never depend on it.
Linux keeps to this on local and network file systems; pages of `tmpfs` are the file
itself, and leave the process alone; so do all pages on macOS.

Source: madvise(2), posix_fadvise(2).
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np

# A page fault maps what the cache has of the 64 KiB around it (fault_around_bytes).
_AROUND = max(1, (64 << 10) // mmap.PAGESIZE)
_COUNTS = ("pieces", "held", "read", "dropped")


class PageBudget:
    """Read pieces of mapped arrays ahead, and drop the oldest; safe to share.

    Pieces count with all their pages: one that two of them share counts twice, so that
    no more is held than `max_bytes`, unless a single piece is larger.

    Attributes:
        max_bytes: the most that is held.

    Args:
        max_bytes: of all arrays together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._bytes = 0
        self._files: dict[int, _MappedFile] = {}
        self._held: OrderedDict[tuple[int, int, int], None] = OrderedDict()
        self._lock = threading.Lock()

    def hold(self, array: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
        """Ask for pieces of an array; those asked for longest ago may go.

        Args:
            array: mapped from a file by `np.load(..., mmap_mode="r")`, or a view of it.
            first: int64 [n], first row of each piece.
            last: int64 [n], the row after its last.

        Returns:
            The bytes of the pages that the pieces lie in.
        """
        file = self._file(array)
        if file is None:
            return 0
        start, row = file.offset_of(array), array.strides[0]
        begin = (start + first * row) // mmap.PAGESIZE
        end = -(-(start + last * row) // mmap.PAGESIZE)
        with self._lock:
            for piece in zip(begin.tolist(), end.tolist(), strict=True):
                if piece[0] < piece[1]:
                    self._hold(file, *piece)
        return int((end - begin).sum()) * mmap.PAGESIZE

    def take_counts(self) -> dict[str, float]:
        """Return what was done since the last call.

        Returns:
            `pieces` that were asked for, the share of them that was `held` already, MB
            of the others (`read_mb`), and of those that were let go (`dropped_mb`).
        """
        with self._lock:
            taken, self._counts = self._counts, dict.fromkeys(_COUNTS, 0)
        pieces = taken["pieces"]
        return {
            "pieces": pieces,
            "held": round(taken["held"] / max(1, pieces), 4),
            "read_mb": round(taken["read"] / 1e6, 3),
            "dropped_mb": round(taken["dropped"] / 1e6, 3),
        }

    def _hold(self, file: _MappedFile, begin: int, end: int) -> None:
        """Make pages the newest, read those that are not held, and drop the oldest."""
        key = (file.address, begin, end)
        self._counts["pieces"] += 1
        if key in self._held:
            self._held.move_to_end(key)
            self._counts["held"] += 1
            return
        num_bytes = (end - begin) * mmap.PAGESIZE
        self._held[key] = None
        self._bytes += num_bytes
        self._counts["read"] += num_bytes
        file.read_ahead(begin, end)
        while self._bytes > self.max_bytes and len(self._held) > 1:
            (address, begin, end), _ = self._held.popitem(last=False)
            self._files[address].drop(begin, end)
            num_bytes = (end - begin) * mmap.PAGESIZE
            self._bytes -= num_bytes
            self._counts["dropped"] += num_bytes

    def _file(self, array: np.ndarray) -> _MappedFile | None:
        """Return the file that an array is mapped from; None where it is empty."""
        if not array.size:
            return None
        base: Any = array
        while not isinstance(base, np.memmap):
            base = base.base
        address = base.ctypes.data
        with self._lock:
            if address not in self._files:
                self._files[address] = _MappedFile(base)
            return self._files[address]


class _MappedFile:
    """A file and its mapping, in pages; `array` is what `np.load` made of it."""

    def __init__(self, array: np.memmap) -> None:
        base: Any = array
        while not isinstance(base, mmap.mmap):
            base = base.base
        self._map = base
        # as numpy maps it: from the last boundary before the array
        self._skipped = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        self.address = array.ctypes.data
        self._start = self.address - (array.offset - self._skipped)
        self._file = os.open(str(array.filename), os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        # else each fault reads ahead what is not asked for
        self._map.madvise(mmap.MADV_RANDOM)

    def offset_of(self, array: np.ndarray) -> int:
        """Return where a view of the array begins in the mapping, bytes."""
        return array.ctypes.data - self._start

    def read_ahead(self, begin: int, end: int) -> None:
        """Begin to read pages, without waiting for them."""
        start = begin * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, end * mmap.PAGESIZE - start)

    def drop(self, begin: int, end: int) -> None:
        """Let pages go: out of the process, and out of the page cache."""
        first = begin // _AROUND * _AROUND
        last = min(-(-end // _AROUND) * _AROUND, -(-len(self._map) // mmap.PAGESIZE))
        start = first * mmap.PAGESIZE
        length = last * mmap.PAGESIZE - start
        self._map.madvise(mmap.MADV_DONTNEED, start, length)
        if hasattr(os, "posix_fadvise"):
            start, length = begin * mmap.PAGESIZE, (end - begin) * mmap.PAGESIZE
            place = self._skipped + start
            os.posix_fadvise(self._file, place, length, os.POSIX_FADV_DONTNEED)
