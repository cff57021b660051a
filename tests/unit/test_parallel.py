"""Threads that work on a stream."""

import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
import torch

from latflow.parallel import Prefetched, in_order, worker_pool

ABANDONED = {
    "a pool in a generator": """
from latflow.parallel import in_order, worker_pool
def stream():
    with worker_pool(2) as pool:
        yield from in_order(pool, abs, range(1000), ahead=4)
abandoned, expected = stream(), 1
""",
    "results of a pool that is let go": """
from latflow.parallel import in_order, worker_pool
abandoned = in_order(worker_pool(2), abs, range(1000), ahead=4)
""",
    "prefetched results": """
from latflow.parallel import Prefetched
abandoned = Prefetched(abs, range(1000), ahead=4)
""",
    "a progress bar": """
from tqdm import tqdm
from latflow.logs import progress
abandoned = iter(progress(range(1000), "numbers"))
""",
}
# Collects as the garbage collector may at any time: within the start of a thread, which
# holds a lock that waiting for a thread to end needs. Ends with all stacks if it hangs.
COLLECTED_IN_A_STARTING_THREAD = """
import faulthandler, gc, threading, torch
faulthandler.dump_traceback_later(20, exit=True)
torch.set_num_threads(3)
expected = 3
{abandoned}
gc.disable()
for _ in range(5):
    next(abandoned)
assert torch.get_num_threads() == expected
cycle = [abandoned]
cycle.append(cycle)
del abandoned, cycle
register, collected = threading.Thread._set_tstate_lock, []

def registering(thread):
    if not collected:
        collected.append(0)
        with threading._shutdown_locks_lock:
            collected[0] = gc.collect()
    register(thread)

threading.Thread._set_tstate_lock = registering
if "tqdm" in globals():  # holds its lock while it starts its first thread
    tqdm.monitor = None
    list(tqdm(range(3)))
thread = threading.Thread(target=print, args=("went on",))
thread.start()
thread.join()
assert collected[0] > 1, collected
assert torch.get_num_threads() == expected, "torch was changed by a finalizer"
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="threads start without the lock that a finalizer could wait for",
)
@pytest.mark.parametrize("name", ABANDONED)
def test_what_is_abandoned_is_collected_without_waiting(name):
    script = COLLECTED_IN_A_STARTING_THREAD.replace("{abandoned}", ABANDONED[name])
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_little_is_ahead(threads):
    taken = 0

    def items():
        nonlocal taken
        for i in range(50):
            taken += 1
            yield i

    def work(i):
        time.sleep(0.001 * (i % 3))
        return i * i

    with worker_pool(threads) as pool:
        results = in_order(pool, work, items(), ahead=2 * threads)
        for number, result in enumerate(results):
            assert result == number**2
            assert taken <= number + 2 * threads + 1
    assert taken == 50


def test_an_error_ends_the_work():
    begun = []

    def work(i):
        begun.append(i)
        if i == 3:
            raise ValueError("three")
        return i

    with worker_pool(2) as pool, pytest.raises(ValueError, match="three"):
        list(in_order(pool, work, range(1000), ahead=4))
    assert len(begun) < 20


def test_threads_end_with_the_pool():
    before, torch_threads = threading.active_count(), torch.get_num_threads()
    with pytest.raises(KeyError), worker_pool(2) as pool:
        assert torch.get_num_threads() == 1
        next(in_order(pool, abs, range(100)))
        raise KeyError
    assert threading.active_count() == before
    assert torch.get_num_threads() == torch_threads


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_prefetched_results_come_in_order_and_end_their_thread(ahead):
    before = threading.active_count()
    assert list(Prefetched(abs, range(-9, 0), ahead=ahead)) == [*range(9, 0, -1)]
    assert threading.active_count() == before
    with closing(Prefetched(abs, range(9), ahead=ahead)) as results:
        assert next(results) == 0
        assert threading.active_count() == before + bool(ahead)
    assert threading.active_count() == before
    assert list(results) == []
