"""Threads that work on a stream."""

import threading
import time

import pytest

from latflow.parallel import map_in_order


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

    for number, result in enumerate(map_in_order(work, items(), threads)):
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

    with pytest.raises(ValueError, match="three"):
        list(map_in_order(work, range(1000), 2))
    assert len(begun) < 20


def test_threads_end_with_the_stream():
    before = threading.active_count()
    stream = map_in_order(abs, range(100), 2)
    next(stream)
    stream.close()
    assert threading.active_count() == before
