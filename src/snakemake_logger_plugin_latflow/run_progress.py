"""What a person sees of a run: stages, share done, time left; errors as they are.

Snakemake tells each selection, start and end of a job; here a line comes when a rule's
last job has ended, and for jobs that took long. On a terminal the last line says how
far the run is and what it does; elsewhere such a line comes once a minute.

The share counts jobs by what their rules usually take (`rule_costs`), on as much speech
as the jobs that have ended seem to have; of a training that runs, by the share of its
epochs that its `log.jsonl` tells. The time left is of jobs as they were measured here:
of a rule by its ended jobs, of a training by how fast its epochs go, of others by how
long all took beside what is usual. Errors, warnings and
what else Snakemake says are printed as it would; with `--dry-run`, `--quiet`,
`--verbose` or `--printshellcmds` everything is.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_latflow.refusals import in_one_line
from snakemake_logger_plugin_latflow.rule_costs import usual_seconds

#: Variable with the folder of results that `latflow run` is to make.
RESULTS = "LATFLOW_RESULTS"
_END = 1 << 16  # bytes of a log.jsonl in which its last lines are looked for
# What a training takes follows its epochs and network more than the hours of speech.
_TRAININGS = ("train_lfmmi", "train_network", "train_sequence", "train_language_model")
# Ended rules that tell how much speech there is: seconds an hour each, and how many.
_LEAST_RATE, _FEWEST = 5.0, 3
LONG = 30.0  # seconds of a job that has a line of its own
_INTERVALS = {True: 1.0, False: 60.0}  # seconds between states: on a terminal, or not
# What Snakemake says of itself, and nobody needs who follows a run.
_CHATTER = (
    *("Building DAG", "Select jobs", "Complete log", "Assuming unrestricted", "host:"),
    *("Conda environments: ignored", "Singularity containers: ignored"),
    *("Group jobs: inactive", "Config file ", "Using shell", "Workflow defines "),
)
_TOLD = {LogEvent.JOB_INFO, LogEvent.JOB_FINISHED, LogEvent.RUN_INFO}
_HIDDEN = {
    LogEvent.JOB_STARTED,
    LogEvent.PROGRESS,
    LogEvent.RESOURCES_INFO,
    LogEvent.RULEGRAPH,
    LogEvent.SHELLCMD,
    LogEvent.WORKFLOW_STARTED,
    LogEvent.GROUP_INFO,
}


@dataclass(frozen=True)
class Job:
    """A job that is running.

    Attributes:
        rule: its rule.
        what: it does, for a person; nothing where it is a target.
        begun: seconds of a clock.
        share: of it that is done, 0 to 1, as it tells itself; None where it does not.
    """

    rule: str
    what: str
    begun: float
    share: Callable[[], float | None]


class Progress:
    """Jobs of a run, by rule: which run, which have ended, and what is left.

    Args:
        usual: usual seconds of a job of a rule, on so many hours of speech.
        now: seconds of a clock.
    """

    def __init__(
        self,
        usual: Callable[[str, float], float] = usual_seconds,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usual_of = usual
        self._now = now
        self._begin = now()
        self._left: Counter[str] = Counter()
        self._all: Counter[str] = Counter()
        self._running: dict[int, Job] = {}  # by number
        self._seconds: dict[str, float] = {}  # that ended jobs of a rule took
        self._most = 0.0  # share that has been told: it never goes back
        # Of each job, the share that an earlier run has done: it took no time of ours.
        self._before: dict[int, tuple[str, float]] = {}

    def plan(self, jobs: Mapping[str, int]) -> None:
        """Begin a run of this many jobs by rule."""
        self._all = Counter({rule: n for rule, n in jobs.items() if rule != "total"})
        self._left = self._all.copy()
        self._most = 0.0
        self._begin = self._now()

    def start(
        self,
        job: int,
        rule: str,
        what: str,
        share: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Note that a job begins, or begins again; see `Job`."""
        self._before.setdefault(job, (rule, share() or 0.0))
        self._running[job] = Job(rule, what, self._now(), share)

    def end(self, job: int) -> str | None:
        """Note that a job has ended.

        Returns:
            A line to print; None where there is nothing new to say.
        """
        if job not in self._running:
            return None
        ended = self._running.pop(job)
        rule, what, seconds = ended.rule, ended.what, self._now() - ended.begun
        self._seconds[rule] = self._seconds.get(rule, 0.0) + seconds
        self._left[rule] -= 1
        count = self._all[rule]
        is_last = self._left[rule] <= 0
        if not what:
            return f"{self._percent():>4}  done" if is_last else None
        if count > 1 and is_last:
            what = f"{rule}: {count} jobs"
            seconds = self._seconds[rule]
        elif not is_last and seconds < LONG:
            return None
        return f"{self._percent():>4}  {what} ({clock(seconds)})"

    @property
    def share(self) -> float:
        """Share of the run that is done, 0 to 1, by usual seconds of its jobs."""
        running = 0.0
        for job in self._running.values():
            usual, share = self._usual(job.rule), job.share()
            if share is None:
                running += min(0.9 * usual, self._now() - job.begun)
            else:
                running += usual * share
        done = sum(n * self._usual(rule) for rule, n in self._ended().items())
        share = (done + running) / self._total if self._total else 1.0
        self._most = max(self._most, min(1.0, share))
        return self._most

    @property
    def _total(self) -> float:
        """Usual seconds of all jobs."""
        return sum(n * self._usual(rule) for rule, n in self._all.items())

    def state(self) -> str:
        """Return how far the run is, the time left, and the jobs that are running."""
        share = self.share
        parts = [f"{self._percent()} done"]
        before = sum(self._usual(rule) * part for rule, part in self._before.values())
        ours = share - before / self._total if self._total else 0.0
        # At first, one job tells too little of how fast this machine is.
        if ours > 0.03 and share < 1:
            parts.append(f"about {clock(self._left_seconds())} left")
        running = [self._tell(job) for job in self._running.values() if job.what]
        return ", ".join(parts) + ("  | " + "; ".join(running) if running else "")

    def _ended(self) -> Counter[str]:
        """Return how many jobs of each rule have ended."""
        return self._all - self._left

    def _usual(self, rule: str) -> float:
        """Return usual seconds of a job, on the speech that there seems to be."""
        hours = self._hours
        return self._usual_of(rule, max(1.0, hours) if rule in _TRAININGS else hours)

    @property
    def _hours(self) -> float:
        """Hours of speech by which the ended jobs took usual seconds; 1 at first."""
        found = []
        for rule, number in self._ended().items():
            start, rate = self._usual_of(rule, 0.0), self._usual_of(rule, 1.0)
            if (rate := rate - start) >= _LEAST_RATE:
                seconds = self._seconds.get(rule, 0.0) / number
                found.append(max(0.0, seconds - start) / rate)
        return statistics.median(found) if len(found) >= _FEWEST else 1.0

    def _left_seconds(self) -> float:
        """Return the seconds that are left, with as many jobs at a time as so far."""
        now, ended = self._now(), self._ended()
        measured = dict(self._seconds)
        usual = {rule: n * self._usual(rule) for rule, n in ended.items()}
        left = 0.0
        waiting = self._left.copy()
        unknown = 0.0  # usual seconds of running jobs of which nothing is measured
        for number, job in self._running.items():
            waiting[job.rule] -= 1
            elapsed, share = now - job.begun, job.share()
            before = self._before[number][1]
            if share is not None and share > before:
                left += elapsed * (1 - share) / (share - before)
                measured[job.rule] = measured.get(job.rule, 0.0) + elapsed
                part = self._usual(job.rule) * (share - before)
                usual[job.rule] = usual.get(job.rule, 0.0) + part
            elif ended[job.rule]:
                mean = self._seconds[job.rule] / ended[job.rule]
                left += max(0.1 * mean, mean - elapsed)
            else:
                whole = self._usual(job.rule)
                unknown += max(0.1 * whole, whole - elapsed)
        whole = sum(usual.values())
        pace = sum(measured.values()) / whole if whole else 1.0
        left += pace * unknown
        for rule, number in waiting.items():
            if ended[rule]:
                left += number * self._seconds[rule] / ended[rule]
            else:
                left += number * pace * self._usual(rule)
        spent = sum(self._seconds.values())
        spent += sum(now - job.begun for job in self._running.values())
        at_a_time = spent / max(now - self._begin, 1e-9)
        return left / max(1.0, at_a_time)

    def _tell(self, job: Job) -> str:
        """Return what a job does, how long already, and how far it is."""
        share = job.share()
        far = "" if share is None else f", {100 * share:.0f}%"
        return f"{job.what} ({clock(self._now() - job.begun)}{far})"

    def _percent(self) -> str:
        is_over = sum(self._left.values()) <= 0
        return "100%" if is_over else f"{min(99.0, 100 * self.share):.0f}%"


def share_of_training(log: str | Path) -> float | None:
    """Return the share of a training that is done, from the newest line that tells it.

    Args:
        log: of the job, `<results>/logs/<rule>/<network>.log`; a training keeps its
            `log.jsonl` in `<results>/checkpoints/<network>/<digest>` until it ends.

    Returns:
        0 to 1; None for other jobs, and before the first line.
    """
    path = Path(log)
    if len(path.parents) < 3 or path.parent.name not in _TRAININGS:
        return None  # other jobs of the network have logs of the same name
    found = path.parents[2].glob(f"checkpoints/{path.stem}/*/log.jsonl")
    try:
        newest = max(found, key=lambda course: course.stat().st_mtime, default=None)
        if newest is None:
            return None
        with newest.open("rb") as stream:
            stream.seek(max(0, newest.stat().st_size - _END))
            lines = stream.read().splitlines()
    except OSError:  # the training has just ended
        return None
    for line in reversed(lines):
        try:
            progress = json.loads(line).get("progress")
        except (ValueError, AttributeError):  # cut off
            continue
        if progress is not None:
            return float(progress)
    return None


def clock(seconds: float) -> str:
    """Return a time as people say it: `4 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class LogHandler(LogHandlerBase):
    """Prints a run's progress; see the module."""

    def __post_init__(self) -> None:
        """Take Snakemake's own handler for what is printed as it would."""
        settings = self.common_settings
        quiet = set(settings.quiet or ())
        self._plain = ColorizingTextHandler(
            nocolor=settings.nocolor,
            stream=sys.stdout if settings.stdout else sys.stderr,
            formatter=DefaultFormatter(quiet, settings.show_failed_logs),
        )
        self._plain.addFilter(
            DefaultFilter(
                quiet,
                settings.debug_dag,
                settings.verbose,
                settings.dryrun,
                settings.printshellcmds,
            )
        )
        self._is_plain = bool(
            quiet
            or settings.dryrun
            or settings.verbose
            or settings.debug_dag
            or settings.printshellcmds
        )
        self._progress = Progress()
        self._screen = threading.RLock()  # also of the thread that shows the state
        self._shown = 0  # characters of the state that stands on the terminal
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print what a record of Snakemake means for the one who waits."""
        event = getattr(record, "event", None)
        try:
            self._handle(event, record)
        except BrokenPipeError:  # nobody reads on; the run goes on
            self._over.set()

    def _handle(self, event: LogEvent | None, record: logging.LogRecord) -> None:
        """Print a record as it is, count it, or leave it out."""
        if str(record.msg).startswith("Nothing to be done"):
            self._tell_results(record)
            return
        line = self._refusal(event, record)
        if line is not None:
            with self._screen:
                self._print(line)
        elif self._is_plain:
            self._plain.handle(record)
        elif event is not None and event in _TOLD:
            self._note(event, record)
        elif record.levelno >= logging.WARNING or not self._is_chatter(event, record):
            with self._screen:
                self._clear()
                self._plain.handle(record)

    def _tell_results(self, record: logging.LogRecord) -> None:
        """Say that nothing is to be done, and what an earlier run has made."""
        self._plain.handle(record)
        results = os.environ.get(RESULTS)
        if results and not self.common_settings.dryrun:
            from latflow.report.outcome import tell_outcome

            sys.stdout.write(tell_outcome(results))
            sys.stdout.flush()

    def _refusal(self, event: LogEvent | None, record: logging.LogRecord) -> str | None:
        """Return what Snakemake refuses in a line of ours, where there is one."""
        settings = self.common_settings
        if event != LogEvent.ERROR or settings.verbose or settings.debug_dag:
            return None
        return in_one_line(str(getattr(record, "exception", "")), record.getMessage())

    def close(self) -> None:
        """Leave the terminal as a line of its own."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._screen:
            self._clear()
        super().close()

    @property
    def writes_to_stream(self) -> bool:
        """Tell Snakemake that no other handler is needed."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """Snakemake's own log below `.snakemake/log` stays as it is."""
        return False

    @property
    def has_filter(self) -> bool:
        """`emit` chooses."""
        return True

    @property
    def has_formatter(self) -> bool:
        """`emit` forms the lines."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """Counts of jobs are enough."""
        return False

    def _is_chatter(self, event: LogEvent | None, record: logging.LogRecord) -> bool:
        if event is not None:
            return event in _HIDDEN
        said = str(record.msg or "").strip()
        return not said or said.startswith(_CHATTER)

    def _note(self, event: LogEvent, record: logging.LogRecord) -> None:
        """Keep count of a job that begins or ends, and say what is new."""
        facts: dict[str, Any] = vars(record)
        with self._screen:
            if event == LogEvent.RUN_INFO:
                self._progress.plan(facts["stats"])
                self._print(f"{facts['stats']['total']} jobs")
                self._start_showing()
            elif event == LogEvent.JOB_INFO:
                # Targets do nothing, so that they have no log.
                said = facts["log"] and (facts["rule_msg"] or facts["rule_name"])
                log = next(iter(facts["log"] or ()), "")
                self._progress.start(
                    facts["jobid"],
                    facts["rule_name"],
                    said or "",
                    partial(share_of_training, log),
                )
            else:
                line = self._progress.end(facts["job_id"])
                if line is not None:
                    self._print(line)

    def _start_showing(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def _show(self) -> None:
        """Show the state until the run is over."""
        is_tty = self._plain.is_tty
        while not self._over.wait(_INTERVALS[is_tty]):
            with self._screen:
                state = self._progress.state()
                if not is_tty:
                    self._print(state)
                    continue
                width = shutil.get_terminal_size().columns - 1
                line = state if len(state) <= width else f"{state[: width - 3]}..."
                self._plain.stream.write("\r" + line.ljust(self._shown))
                self._plain.stream.flush()
                self._shown = len(line)

    def _print(self, line: str) -> None:
        self._clear()
        self._plain.stream.write(f"{line}\n")
        self._plain.stream.flush()

    def _clear(self) -> None:
        """Remove the state from the terminal."""
        if self._shown:
            self._plain.stream.write("\r" + " " * self._shown + "\r")
            self._plain.stream.flush()
            self._shown = 0
