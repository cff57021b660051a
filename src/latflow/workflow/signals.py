"""SIGTERM to Snakemake, handled without waiting for what it interrupts.

Snakemake's handler takes a lock of the scheduler. If the signal comes while the same
thread holds it, since a job has just ended or failed, the handler waits for ever: a
cancelled job of a cluster stays behind, and a run that was told to end hangs.

Public: `handle_sigterm_in_a_thread`.
"""

from __future__ import annotations

import _thread
from typing import Any

from snakemake.scheduling.job_scheduler import JobScheduler

_EXIT: Any = JobScheduler.exit_gracefully  # Snakemake's own


def handle_sigterm_in_a_thread() -> None:
    """Have this process's Snakemake run its handler when the lock is free.

    To be called before Snakemake makes its scheduler, which installs the handler.
    """
    scheduler: Any = JobScheduler
    scheduler.exit_gracefully = _exit_gracefully


def _exit_gracefully(scheduler: JobScheduler, *_: object) -> None:
    """Run Snakemake's handler in a thread."""
    # not `threading.Thread`: its start takes a lock that may be held here, too
    _thread.start_new_thread(_EXIT, (scheduler,))
