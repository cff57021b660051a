"""Threads for numerical work: as many as asked for, and no hidden ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")
_AHEAD = 256  # results held while others are made


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


def in_order(
    pool: Executor, do: Callable[[int], Result], count: int
) -> Iterator[Result]:
    """Yield do(0) ... do(count - 1), made in a pool; few are held at a time.

    Args:
        pool: where they are made.
        do: safe to call from several threads.
        count: how many.
    """
    waiting = deque()
    for number in range(count):
        waiting.append(pool.submit(do, number))
        if len(waiting) >= _AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
