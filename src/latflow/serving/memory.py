"""What `ulimit -v` leaves a server: work is refused before libraries run out of memory.

Libraries of C end the process where a few bytes are lacking (glibc for the data of a
thread, LLVM, BLAS). So some address space is kept free of what clients can ask for:
sessions and their steps begin only where that remains.
"""

from __future__ import annotations

import math
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PAGES = Path("/proc/self/statm")


class AddressSpace:
    """The address space of this process, as far as its limit leaves it.

    Args:
        reserve: bytes that are kept free.

    Attributes:
        spares: give up what is only kept for later, where memory lacks.
    """

    def __init__(self, reserve: int) -> None:
        self.spares: list[Callable[[], None]] = []
        self._reserve = reserve
        self._taken = 0  # of work that continues
        self._lock = threading.Lock()

    def has(self, size: int) -> bool:
        """Return whether work may take this many bytes; give up spares for it."""
        if self._left() >= size:
            return True
        for spare in self.spares:
            spare()
        return self._left() >= size

    def _left(self) -> float:
        """Return the bytes that work may take; inf without a limit."""
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY or not _PAGES.is_file():
            return math.inf
        pages = int(_PAGES.read_text().split(maxsplit=1)[0])
        used = pages * resource.getpagesize()
        return limit - used - self._reserve - self._taken

    @contextmanager
    def taking(self, size: int) -> Iterator[None]:
        """Hold this many bytes for work as long as the context is open.

        Raises:
            MemoryError: they are not there.
        """
        with self._lock:
            if not self.has(size):
                raise MemoryError
            self._taken += size
        try:
            yield
        finally:
            with self._lock:
                self._taken -= size
