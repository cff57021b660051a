"""Logging of workflow jobs and commands: one place that decides where lines go.

`log_to` serves the workflow's scripts, `log_to_terminal` the commands; both make a
`UserError` one line and exit status 1, and any other exception a traceback in the log.
`progress` is the one progress bar.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tqdm import tqdm

from latflow.errors import UserError

T = TypeVar("T")
log = logging.getLogger("latflow")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(path: str | Path) -> None:
    """Send the log to a file and errors also to the terminal (workflow scripts)."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _configure([logging.FileHandler(target, mode="w", encoding="utf-8")])


def log_to_terminal(*, verbose: bool = False) -> None:
    """Send the log to standard error (commands)."""
    _configure([logging.StreamHandler()], logging.INFO if verbose else logging.WARNING)


def progress(
    items: Iterable[T], description: str, total: int | None = None
) -> Iterable[T]:
    """Wrap an iterable in a progress bar on standard error.

    Off a terminal the bar prints one line at most every 30 s, so that logs stay short.
    """
    is_terminal = sys.stderr.isatty()
    return tqdm(
        items,
        desc=description,
        total=total,
        mininterval=0.2 if is_terminal else 30.0,
        dynamic_ncols=is_terminal,
        leave=is_terminal,
    )


def _configure(handlers: list[logging.Handler], level: int = logging.INFO) -> None:
    """Install handlers and the exception hook."""
    logging.basicConfig(level=level, format=FORMAT, handlers=handlers, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _report_exception


def _report_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """One line for the user's errors, a traceback in the log for ours."""
    if isinstance(error, UserError):
        log.error("%s", error)
    else:
        log.critical("unexpected error", exc_info=(kind, error, trace))
    if not any(
        type(handler) is logging.StreamHandler
        for handler in logging.getLogger().handlers
    ):
        sys.stderr.write(f"error: {error or kind.__name__}\n")
