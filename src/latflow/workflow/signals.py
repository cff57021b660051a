"""Requests to stop that reach Snakemake alone: its jobs end, with their checkpoints.

At a terminal Ctrl-C reaches the jobs as well. A signal to Snakemake's process alone, by
`kill` or a supervisor, does not: Snakemake would wait until its jobs are done, hours or
days. So the signal is passed on to the jobs: they keep what they have done and end,
Snakemake ends with them, and no lock is left.

Snakemake's own handler of SIGTERM takes a lock of the scheduler. If the signal comes
while the same thread holds it, since a job has just ended or failed, the handler waits
for ever: a cancelled job of a cluster stays behind, and a run that was told to end
hangs. So it runs in a thread.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
from snakemake.scheduling.job_scheduler import JobScheduler

from latflow.interruption import report_in_a_line

_EXIT: Any = JobScheduler.exit_gracefully  # Snakemake's own
# A job that begins just when the run is told to end, or has not yet its handlers, is
# told again; for a job that has been told already that changes nothing.
_AGAIN_S = (0.0, 2.0, 6.0)
# Shells that jobs are started by: they would end, and leave their job behind.
_SHELLS = {"bash", "dash", "sh", "time"}


def handle_signals() -> None:
    """Make this process's Snakemake pass its signals on to its jobs.

    Ctrl-C is then reported in a line, also before jobs run.

    To be called before Snakemake makes its scheduler, which installs a handler.
    """
    report_in_a_line()
    scheduler: Any = JobScheduler
    scheduler.exit_gracefully = _exit_gracefully
    with contextlib.suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)


def _exit_gracefully(scheduler: JobScheduler, *_: object) -> None:
    """Run Snakemake's handler in a thread; signal its jobs."""
    # not `threading.Thread`: its start takes a lock that may be held here, too
    _thread.start_new_thread(_EXIT, (scheduler,))
    _thread.start_new_thread(_end_all, ())


def _interrupt(number: int, frame: Any) -> None:
    """Interrupt this process, as Python does; signal its jobs."""
    _thread.start_new_thread(_end_all, ())
    signal.default_int_handler(number, frame)


def _end_all() -> None:
    """Tell all jobs to end, and those that begin meanwhile."""
    for seconds in _AGAIN_S:
        time.sleep(seconds)
        end_jobs(os.getpid())


def end_jobs(process: int) -> list[int]:
    """Send SIGTERM to what a process has started, below shells.

    What has its own session, as the fork server, is left alone: it ends with the
    processes that wait for it.

    Returns:
        The processes that got the signal.
    """
    signalled = []
    for child in _jobs_of(process, os.getsid(process)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGTERM)
            signalled.append(child)
    return signalled


def _jobs_of(process: int, session: int) -> Iterator[int]:
    """Yield the processes below one that are not shells, of its session."""
    with contextlib.suppress(psutil.Error, OSError):  # they may end meanwhile
        for child in psutil.Process(process).children():
            yield from _job_or_below(child, session)


def _job_or_below(child: psutil.Process, session: int) -> Iterator[int]:
    """Yield a process of a session, or what is below it if it is a shell."""
    with contextlib.suppress(psutil.Error, OSError):
        if os.getsid(child.pid) == session:
            if child.name() in _SHELLS:
                yield from _jobs_of(child.pid, session)
            else:
                yield child.pid
