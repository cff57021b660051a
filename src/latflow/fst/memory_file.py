"""Memory of the system: files that live in it, and what is given back to it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def return_memory() -> None:
    """Give freed memory back to the system, which the C library keeps in small pieces.

    Of a large FST in kaldifst, an allocation a state, that is nearly all.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def memory_file() -> Iterator[str]:
    """Give a file by name that lives in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("latflow")
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "fst")
