"""Threads for numerical work: as many as asked for, no hidden ones, results in order.

Numba kernels, torch and the audio decoders release the interpreter's lock, so that
threads of one process keep all cores busy and share what they read.

Public: `worker_pool`, `in_order`, `map_in_order`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 2  # items per thread that may be begun or done before they are asked for


@contextmanager
def worker_pool(threads: int) -> Iterator[Executor]:
    """Yield a pool of threads in which every torch operation uses one thread only.

    Args:
        threads: how many; at least one is made.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(
        max(1, threads), initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def in_order(
    pool: Executor,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    ahead: int = 256,
) -> Iterator[Result]:
    """Yield work(item) of each item, in the items' order.

    Args:
        pool: where the work is done.
        work: safe to call from several threads.
        items: taken one by one, in the calling thread.
        ahead: greatest number of items begun or done before they are asked for; it
            bounds the memory when results are taken more slowly than made.

    Raises:
        Exception: what `work` raised, in its turn; work not begun is given up then.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def map_in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield work(item) of each item, in order, from a pool of its own.

    At most `2 * threads` items are under way or waiting, whatever their number.
    """
    with worker_pool(threads) as pool:
        yield from in_order(pool, work, items, ahead=_AHEAD * max(1, threads))
