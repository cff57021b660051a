"""Arrays that are kept in memory for their next use, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np


class ArrayCache:
    """Keep arrays by key, the longest unused going first; safe to share.

    Args:
        max_bytes: the most that is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> np.ndarray | None:
        """Return the array of a key, if it is there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, array: np.ndarray) -> None:
        """Keep an array; one larger than the cache is not kept."""
        with self._lock:
            if key in self._kept or array.nbytes > self._max_bytes:
                return
            self._kept[key] = array
            self._bytes += array.nbytes
            while self._bytes > self._max_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.nbytes
