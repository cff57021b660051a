"""Stopping a training on request: SIGTERM, a checkpoint, and a status that says so.

Batch systems send SIGTERM before they take a machine away. The ranks agree on the step
after which they stop, the checkpoint is written, and the process ends with the status
75 (`EX_TEMPFAIL`): the same command goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

RESUME_STATUS = 75


class Interrupted(Exception):  # noqa: N818 - not an error
    """The training was asked to stop; its checkpoint is written."""


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGTERM has come since.

    Outside of the main thread, where signals cannot be received, it says no.
    """
    is_asked = threading.Event()

    def hear(_: int, __: FrameType | None) -> None:
        is_asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield is_asked.is_set
        return
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield is_asked.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
