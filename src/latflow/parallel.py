"""Threads for numerical work: as many as asked for, no hidden ones, results in order.

Numba kernels, numpy's products, torch and the audio decoders release the interpreter's
lock, so that threads of one process keep all cores busy and share what they read.

Whoever uses the results opens the pool and closes it:

    with worker_pool(threads) as pool:
        for result in in_order(pool, work, items):

A generator owns no pool: it may be left suspended by an error of its consumer and then
be collected anywhere, even within the start of a thread, where waiting for another
thread to end waits for ever. So nothing here waits, or takes a lock that others hold,
when it is collected.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from threadpoolctl import threadpool_limits

from latflow.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
SCHEDULER = "DASK_SCHEDULER_ADDRESS"  # as Dask's own configuration has it

log = logging.getLogger(__name__)


class worker_pool(ThreadPoolExecutor):  # noqa: N801 - used like a function
    """A pool of threads in which torch and numpy's BLAS use one thread only.

    For use in a `with` statement, which waits for the threads and gives torch and BLAS
    their own back. Where the statement stands in a generator that is closed or
    collected, the pool is only let go: its threads end by themselves, torch and BLAS
    are left alone.

    Torch is not imported here, since most jobs work without it and its import takes
    longer than they do: a module whose work uses torch imports it at its top.

    Args:
        threads: how many; at least one is made.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(max(1, threads), initializer=_use_one_thread)
        torch = _torch()
        self._before = 1 if torch is None else int(torch.get_num_threads())
        self._blas: threadpool_limits | None = None

    def __enter__(self) -> Self:
        """Hold torch and BLAS to one thread here, too."""
        _use_one_thread()
        self._blas = threadpool_limits(1, "blas")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the threads; work not begun is given up."""
        is_collected = kind is GeneratorExit
        self.shutdown(wait=not is_collected, cancel_futures=True)
        torch = _torch()
        if torch is not None and not is_collected:
            torch.set_num_threads(self._before)
        if self._blas is not None and not is_collected:
            self._blas.restore_original_limits()


@contextmanager
def cluster_pool(threads: int) -> Iterator[tuple[Executor, int]]:
    """Open a pool of Dask's workers, or of threads where no scheduler is named.

    The environment variable `DASK_SCHEDULER_ADDRESS` names it (`tcp://host:8786`). Its
    workers need this package, and the files that work reads at the same paths; work and
    items go to them pickled, so work is a function of a module.

    Args:
        threads: of the pool without a scheduler.

    Yields:
        (the pool, how many items it works on at a time).

    Raises:
        UserError: Dask is not installed, the scheduler does not answer, or it has no
            workers.
    """
    address = os.environ.get(SCHEDULER)
    if not address:
        with worker_pool(threads) as pool:
            yield pool, threads
        return
    try:
        from distributed import Client
    except ImportError:
        remedy = f"pip install distributed, or unset {SCHEDULER}"
        raise UserError("Dask is not installed", remedy=remedy) from None
    try:
        client = Client(address)
    except (OSError, TimeoutError, ValueError) as error:
        what = f"Dask's scheduler {address} does not answer ({error})"
        raise UserError(what, remedy=f"start it, or unset {SCHEDULER}") from None
    with client:
        threads_of: Any = client.nthreads()
        number = sum(threads_of.values())
        if not number:
            what = f"Dask's scheduler {address} has no workers"
            raise UserError(what, remedy=f"dask worker {address}")
        log.info("work is done by %d threads of Dask's workers, %s", number, address)
        with client.get_executor(pure=False) as pool:
            yield pool, number


def _torch() -> Any:
    """Return torch if this process has imported it, else None."""
    return sys.modules.get("torch")


def _use_one_thread() -> None:
    """Let torch's operations in the calling thread use that thread only."""
    torch = _torch()
    if torch is not None:
        torch.set_num_threads(1)


def in_order(
    pool: Executor,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    ahead: int = 256,
) -> Iterator[Result]:
    """Yield work(item) of each item, in the items' order.

    Args:
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


class Prefetched(Iterator[Result], Generic[Result]):
    """Results that threads make ready in the background, in order.

    Close it (`contextlib.closing`) when the work reads what is closed afterwards. One
    that is collected instead waits for nothing: its threads end by themselves.

    Args:
        work: called in a thread.
        items: taken one by one, in the calling thread.
        ahead: greatest number of results made before they are asked for; 0 makes them
            in the calling thread.
        threads: results worked on at a time.
    """

    def __init__(
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        ahead: int,
        threads: int = 1,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, "prefetched") if ahead else None
        self._results: Iterator[Result] = (
            in_order(self._pool, work, items, ahead=ahead + 1)
            if self._pool
            else map(work, items)
        )

    def __next__(self) -> Result:
        """Return the next result, or raise what the work raised; the end closes it."""
        try:
            return next(self._results)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give up the work that is left, and wait for the threads to end."""
        self._results = iter(())
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
