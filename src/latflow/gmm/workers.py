"""Threads for numerical work: as many as asked for, and no hidden ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def worker_pool(threads: int) -> Iterator[Executor]:
    """Yield a pool of threads in which every torch operation uses one thread only.

    Kernels and torch release the interpreter's lock, so `threads` cores are busy.

    Args:
        threads: at least 1.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(max(1, threads)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)
