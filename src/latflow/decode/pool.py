"""Work on a stream of items with a pool of threads, results in the items' order.

Public: `map_in_order`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # items per thread that may be begun or done before they are asked for


def map_in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield work(item) for each item, in order, with bounded work ahead.

    At most `2 * threads` results wait, whatever the number of items. Inside the work
    torch uses one thread, so that `threads` cores are used, and times of a thread are
    times of its work.

    Args:
        work: called in the pool's threads; should release the interpreter's lock.
        items: taken one by one, in the calling thread.
        threads: number of threads.

    Raises:
        Exception: whatever `work` raised first, in the items' order; work not begun is
            given up.
    """
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(
        threads, "decode", initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= _AHEAD * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
