"""Retries of trainings: an attempt that came further than the one before uses up none.

Snakemake tries a failed job again as often as `retries` says, whatever became of it. A
training that was killed continues from its newest checkpoint, so that here only those
attempts count which left no new one: a preempted training ends, one that fails at the
same place is given up after as many retries as any job. The number of the attempt, by
which rules ask for more memory and time, grows with the attempts that count, and no
further than with other jobs.

Checkpoints are looked at by Snakemake's main process alone, when an attempt has failed;
jobs that have none of their own are left unchanged.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snakemake.jobs import Job
from snakemake.logging import logger

_RESTART_TIMES: Any = Job.restart_times  # Snakemake's own property
Places = dict[str, str]


class Retries:
    """Failed attempts of trainings since they wrote their last checkpoint.

    Args:
        folders: of the trainings' checkpoints, before this run's first attempt.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self._places = {folder: newest(folder) for folder in folders}
        self._failures: Counter[str] = Counter()

    def note_failure(self, folder: str) -> int:
        """Note a failed attempt.

        Args:
            folder: of the training's checkpoints.

        Returns:
            Attempts that have failed since the last new checkpoint, with this one; 0 if
            this one wrote some.
        """
        before, now = self._places.get(folder, {}), newest(folder)
        self._places[folder] = now
        if any(name > before.get(training, "") for training, name in now.items()):
            self._failures[folder] = 0
        else:
            self._failures[folder] += 1
        return self._failures[folder]


def newest(folder: str | Path) -> Places:
    """Return the newest checkpoint in each of a network's folders of checkpoints.

    There is a folder for each training that the network had, with other options or
    data. Names sort as the positions that a training has reached.
    """
    places: Places = {}
    for path in Path(folder).glob("*/e*-b*.pt"):
        training = path.parent.name
        places[training] = max(places.get(training, ""), path.name)
    return places


def count_by_progress(folders: Iterable[str]) -> None:
    """Make this process's Snakemake count retries of trainings by their checkpoints.

    Snakemake asks a job how often it may be tried again when an attempt has failed, and
    for nothing else. Of jobs with a param `checkpoints` the answer is here.

    Args:
        folders: those params of the workflow's jobs.
    """
    retries = Retries(folders)

    def restart_times(job: Any) -> int:
        """Return how often a job may be tried again; also set what counts of it."""
        allowed: int = _RESTART_TIMES.fget(job)
        folder = job.params.get("checkpoints")
        if not allowed or folder is None:
            return allowed
        failures = retries.note_failure(folder)
        what = job.message or job.rule.name
        if failures > allowed:
            logger.error(
                f"{what}: {failures} attempts in a row wrote no checkpoint in "
                f"{folder} - see the log; the same command continues from the last one"
            )
            return 0
        # Snakemake adds one for the attempt that follows.
        if failures:
            job.attempt = min(job.attempt, allowed)
            logger.info(f"{what}: no new checkpoint, retry {failures} of {allowed}.")
        else:
            job.attempt -= 1
            logger.info(f"{what}: continues from a new checkpoint, no retry used.")
        return sys.maxsize

    setattr(Job, "restart_times", property(restart_times))  # noqa: B010 - no setter
