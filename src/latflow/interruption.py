"""Ctrl-C while a program starts: a line, as later (`latflow.logs`), and no traceback.

Imports take a while, on a cold disk seconds, and nothing else is set up before them.
`python -m latflow.interruption MODULE ...` is `python -m MODULE ...` with such a line.
"""

import contextlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator
from types import TracebackType


def report_in_a_line() -> None:
    """Report interruptions in a line, unless somebody has set another hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _report


@contextlib.contextmanager
def reporting_termination() -> Iterator[None]:
    """Let SIGTERM end this process as it does, but with a line.

    Only for what forks no processes: a signal is lost to one that has just begun.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    """Report a signal, and end by it."""
    os.write(2, b"ended by SIGTERM; run the same command again\n")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _report(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Tell an interruption in a line, all else as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("interrupted; run the same command again\n")
    else:
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    report_in_a_line()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
