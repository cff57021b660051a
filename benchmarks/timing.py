"""What all benchmarks share: clocks, contenders that take turns, the golden data."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

Clock = Literal["wall", "processor", "thread"]
_CLOCKS: dict[Clock, Callable[[], float]] = {
    "wall": time.perf_counter,
    "processor": time.process_time,
    "thread": time.thread_time,
}
HERE = Path(__file__).parent
GOLDEN = Path(os.environ.get("LATFLOW_SHARED", HERE.parents[1] / "shared"), "golden")


class Stopwatch:
    """Takes the time of a block.

    Attributes:
        wall: seconds.
        processor: seconds of all threads of the process.
        thread: seconds of the calling thread.
    """

    wall = processor = thread = math.nan

    def __enter__(self) -> Self:
        self._begin = {name: clock() for name, clock in _CLOCKS.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for name, clock in _CLOCKS.items():
            setattr(self, name, clock() - self._begin[name])


def least_seconds(
    works: Mapping[str, Callable[[Any], object]],
    items: Iterable[Any],
    repeats: int,
    clock: Clock = "thread",
) -> dict[str, float]:
    """Return seconds of each work over all items: the least of passes taken in turns.

    Whatever else the machine does falls on all alike; what is compiled at a first call
    is called once before.

    Args:
        works: what is timed, by name.
        items: arguments of a pass.
        repeats: passes of each.
        clock: of the seconds.
    """
    listed = list(items)
    least = dict.fromkeys(works, math.inf)
    for work in works.values():
        work(listed[0])
    for _ in range(repeats):
        for name, work in works.items():
            with Stopwatch() as spent:
                for item in listed:
                    work(item)
            least[name] = min(least[name], getattr(spent, clock))
    return least
