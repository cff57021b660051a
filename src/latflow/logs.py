"""Logging of workflow jobs and commands: one place that decides where lines go.

`log_to` serves the workflow's scripts, `log_to_terminal` the commands; both make a
`UserError` one line and exit status 1, and any other exception a traceback in the log.
`progress` is the one progress bar; that of a job is in its log. `library_output` sends
there what compiled libraries print. `watched` writes the stacks of a process that
hangs.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from latflow.errors import Interrupted, UserError

T = TypeVar("T")
log = logging.getLogger("latflow")
STALL_MINUTES = (
    "LATFLOW_STALL_MINUTES"  # passes a job's limit to the ranks of its training
)
_BY_HAND = (
    "interrupted; run the same command again: finished jobs stay, and a training goes "
    "on from its last checkpoint"
)
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(path: str | Path) -> TextIO:
    """Send the log to a file, which is returned, and errors also to the terminal."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(target, mode="w", encoding="utf-8")
    _configure([handler])
    assert handler.stream is not None  # only with delay=True
    return handler.stream


def log_to_terminal(*, verbose: bool = False) -> None:
    """Send the log to standard error (commands)."""
    _configure([logging.StreamHandler()], logging.INFO if verbose else logging.WARNING)


def progress(
    items: Iterable[T],
    description: str,
    total: int | None = None,
    *,
    delay: float = 0.0,
) -> Iterable[T]:
    """Wrap an iterable in a progress bar on standard error.

    Off a terminal the bar prints one line at most every 30 s, so that logs stay short.
    A job's bar says as much in its log, and nothing if it takes less.

    Args:
        items: the iterable.
        description: what stands before the bar.
        total: number of items, if it is known.
        delay: seconds before the bar is shown.
    """
    if _log_file() is not None:
        return _LoggedBar(
            items, desc=description, total=total, mininterval=30.0, delay=30.0
        )
    is_terminal = sys.stderr.isatty()
    return _Bar(
        items,
        desc=description,
        total=total,
        mininterval=0.2 if is_terminal else 30.0,
        dynamic_ncols=is_terminal,
        leave=is_terminal,
        delay=delay,
    )


class _Bar(tqdm):
    """A bar that may be collected anywhere: tqdm's takes its lock when it is.

    tqdm holds that lock while it starts a thread; collected within that start, its own
    bar would wait for itself.
    """

    def __iter__(self) -> Iterator[Any]:
        """Yield the items; the bar ends with the last one."""
        is_done = False
        try:
            for item in self.iterable:
                yield item
                self.update()
                note_progress()
            is_done = True
        finally:
            if not is_done:
                self.end_line()
        self.close()

    def end_line(self) -> None:
        """End the line of a bar that stops where it is: an error follows."""
        if not self.disable and (self.delay <= 0 or self.last_print_n):
            self.fp.write("\n")

    def __del__(self) -> None:
        """Leave the bar as it stands."""


class _LoggedBar(_Bar):
    """A bar in the log of a job: jobs beside each other share a terminal."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log how far the work is; tqdm also calls this to remove the bar (`msg`)."""
        del pos
        if msg is None:
            log.info("%s", self)

    def end_line(self) -> None:
        """Do nothing: a log has whole lines."""


@contextmanager
def library_output() -> Iterator[None]:
    """Send what compiled libraries write to standard error to the log of the job.

    Outside of a job it stays where it is.
    """
    stream = _log_file()
    if stream is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    try:
        os.dup2(stream.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _log_file() -> TextIO | None:
    """Return the log of the job that this process is; None for a command."""
    handlers = logging.getLogger().handlers
    found = (h.stream for h in handlers if type(h) is logging.FileHandler)
    return next(found, None)


@contextmanager
def watched(stream: TextIO, minutes: float) -> Iterator[None]:
    """Write the stacks of all threads to a stream: on SIGUSR1, and when nothing moves.

    A line of the log, an item of `progress` and `note_progress` are movement.

    Args:
        stream: a file with a descriptor.
        minutes: without any movement, until the stacks are written, again and again; 0
            for never. Processes that this one starts find it as `STALL_MINUTES`.
    """
    faulthandler.register(signal.SIGUSR1, file=stream)
    os.environ[STALL_MINUTES] = str(minutes)
    _watchdog.start(stream, 60.0 * minutes)
    try:
        yield
    finally:
        _watchdog.stop()
        os.environ.pop(STALL_MINUTES, None)
        faulthandler.unregister(signal.SIGUSR1)


def note_progress() -> None:
    """Tell the watchdog that work continues; cheap enough for each item."""
    _watchdog.note_progress()


class _Watchdog:
    """Has faulthandler's thread, which needs no interpreter, wait for a standstill."""

    def __init__(self) -> None:
        self._stream: TextIO | None = None
        self._seconds = 0.0
        self._since = 0.0

    def start(self, stream: TextIO, seconds: float) -> None:
        """Wait from now on; 0 seconds: do not."""
        self._stream, self._seconds, self._since = stream, seconds, 0.0
        self.note_progress()

    def note_progress(self) -> None:
        """Begin to wait again, at most once a second."""
        now = time.monotonic()
        if self._stream is None or not self._seconds or now < self._since + 1:
            return
        self._since = now
        faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._stream)

    def stop(self) -> None:
        """Stop the watch."""
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
        self._stream, self._seconds = None, 0.0


_watchdog = _Watchdog()


def _note_line(_: logging.LogRecord) -> bool:
    """Note a line as a sign of life, and let it through."""
    note_progress()
    return True


def _configure(handlers: list[logging.Handler], level: int = logging.INFO) -> None:
    """Install handlers and the exception hook."""
    for handler in handlers:
        handler.addFilter(_note_line)
    logging.basicConfig(level=level, format=FORMAT, handlers=handlers, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _report_exception


def _report_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Tell the user's errors and interruptions in a line, ours with a traceback."""
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted(_BY_HAND if _log_file() else "interrupted")
    if isinstance(error, UserError | Interrupted):
        log.error("%s", error)
    else:
        log.critical("unexpected error", exc_info=(kind, error, trace))
    if not any(
        type(handler) is logging.StreamHandler
        for handler in logging.getLogger().handlers
    ):
        sys.stderr.write(f"error: {str(error) or kind.__name__}\n")
