"""Ctrl-C while a program starts: a line, as later (`latflow.logs`), and no traceback.

Imports take a while, on a cold disk seconds, and nothing else is set up before them.
"""

import sys
from types import TracebackType


def report_in_a_line() -> None:
    """Report interruptions in a line, unless somebody has set another hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _report


def _report(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Tell an interruption in a line, all else as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("interrupted; run the same command again\n")
    else:
        sys.__excepthook__(kind, error, trace)
