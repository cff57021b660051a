"""What a person sees of a run: stages, share done, time left; errors as they are.

Snakemake reports each selection, start and end of a job; here a line comes when a
rule's last job has ended, and for jobs that took long. On a terminal the last line says
how far the run is and what it does; elsewhere such a line comes once a minute.

The share counts jobs by what they are expected to take, which `latflow plan`'s model
tells after some seconds (until then there is no share); of a training that runs, by the
share of its epochs in its `log.jsonl`. The time left is of jobs as they were measured
here: of a rule by its ended jobs, of a training by how fast its epochs go, of others by
how long all took beside what was expected. All this is on standard output. Errors,
warnings and what else Snakemake says are printed as it would, on standard error; with
`--dry-run`, `--quiet`, `--verbose` or `--printshellcmds` everything is.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_latflow.refusals import in_one_line

#: Variable with the folder of results that `latflow run` is to make.
RESULTS = "LATFLOW_RESULTS"
_END = 1 << 16  # bytes of a log.jsonl in which its last lines are looked for
# Their logs show their progress.
_TRAININGS = ("train_lfmmi", "train_network", "train_sequence", "train_language_model")
# Seconds after which a run is estimated: on a terminal, or not. Shorter ones are not.
_AT_FIRST = {True: 10.0, False: 45.0}
LONG = 30.0  # seconds of a job that has its own line
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
        share: of it that is done, 0 to 1, as it reports; None where it does not.
    """

    rule: str
    what: str
    begun: float
    share: Callable[[], float | None]


class Progress:
    """Jobs of a run, by rule: which run, which have ended, and what is left.

    Args:
        now: seconds of a clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._expected: Mapping[str, float] | None = None
        self._now = now
        self._begin = now()
        self._left: Counter[str] = Counter()
        self._all: Counter[str] = Counter()
        self._running: dict[int, Job] = {}  # by number
        self._seconds: dict[str, float] = {}  # that ended jobs of a rule took
        self._most = 0.0  # share that was shown: it never decreases
        # Of each job, the share that an earlier run has done: it took no time of ours.
        self._before: dict[int, tuple[str, float]] = {}

    def plan(self, jobs: Mapping[str, int]) -> None:
        """Begin a run of this many jobs by rule."""
        self._all = Counter({rule: n for rule, n in jobs.items() if rule != "total"})
        self._left = self._all.copy()
        self._most = 0.0
        self._begin = self._now()

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Take what jobs are expected to take, by rule; if nothing is, all alike."""
        self._expected = seconds

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
        """Share of the run that is done, 0 to 1, by expected seconds of its jobs."""
        running = 0.0
        for job in self._running.values():
            expected, share = self._seconds_of(job.rule), job.share()
            if share is None:
                running += min(0.9 * expected, self._now() - job.begun)
            else:
                running += expected * share
        done = sum(n * self._seconds_of(rule) for rule, n in self._ended().items())
        share = (done + running) / self._total if self._total else 1.0
        self._most = max(self._most, min(1.0, share))
        return self._most

    @property
    def _total(self) -> float:
        """Expected seconds of all jobs."""
        return sum(n * self._seconds_of(rule) for rule, n in self._all.items())

    def state(self) -> str:
        """Return how far the run is, the time left, and the jobs that are running."""
        running = [self._line_of(job) for job in self._running.values() if job.what]
        what = "  | " + "; ".join(running) if running else ""
        if self._expected is None:
            return f"{self._ended().total()} of {self._all.total()} jobs done{what}"
        share = self.share
        parts = [f"{self._percent()} done"]
        before = sum(
            self._seconds_of(rule) * part for rule, part in self._before.values()
        )
        ours = share - before / self._total if self._total else 0.0
        # At first, one job says too little about the speed of this machine.
        if ours > 0.03 and share < 1:
            parts.append(f"about {clock(self._left_seconds())} left")
        return ", ".join(parts) + what

    def _ended(self) -> Counter[str]:
        """Return how many jobs of each rule have ended."""
        return self._all - self._left

    def _seconds_of(self, rule: str) -> float:
        """Return the expected seconds of a job; 0 of targets, which do nothing."""
        return self._expected.get(rule, 0.0) if self._expected else 1.0

    def _left_seconds(self) -> float:
        """Return the seconds that are left, with as many jobs at a time as so far."""
        now, ended = self._now(), self._ended()
        measured = dict(self._seconds)
        expected = {rule: n * self._seconds_of(rule) for rule, n in ended.items()}
        left = 0.0
        waiting = self._left.copy()
        unknown = 0.0  # expected seconds of running jobs of which nothing is measured
        for number, job in self._running.items():
            waiting[job.rule] -= 1
            elapsed, share = now - job.begun, job.share()
            before = self._before[number][1]
            if share is not None and share > before:
                left += elapsed * (1 - share) / (share - before)
                measured[job.rule] = measured.get(job.rule, 0.0) + elapsed
                part = self._seconds_of(job.rule) * (share - before)
                expected[job.rule] = expected.get(job.rule, 0.0) + part
            elif ended[job.rule]:
                mean = self._seconds[job.rule] / ended[job.rule]
                left += max(0.1 * mean, mean - elapsed)
            else:
                whole = self._seconds_of(job.rule)
                unknown += max(0.1 * whole, whole - elapsed)
        whole = sum(expected.values())
        pace = sum(measured.values()) / whole if whole else 1.0
        left += pace * unknown
        for rule, number in waiting.items():
            if ended[rule]:
                left += number * self._seconds[rule] / ended[rule]
            else:
                left += number * pace * self._seconds_of(rule)
        spent = sum(self._seconds.values())
        spent += sum(now - job.begun for job in self._running.values())
        at_a_time = spent / max(now - self._begin, 1e-9)
        return left / max(1.0, at_a_time)

    def _line_of(self, job: Job) -> str:
        """Return what a job does, how long already, and how far it is."""
        share = job.share()
        far = "" if share is None else f", {100 * share:.0f}%"
        return f"{job.what} ({clock(self._now() - job.begun)}{far})"

    def _percent(self) -> str:
        is_over = sum(self._left.values()) <= 0
        if self._expected is None and not is_over:
            return ""
        return "100%" if is_over else f"{min(99.0, 100 * self.share):.0f}%"


def share_of_training(log: str | Path) -> float | None:
    """Return the share of a training that is done, from the newest line that has it.

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


class Estimate(Protocol):
    """Estimates what the jobs of a run take, as `latflow.workflow.cost_estimate`."""

    def __call__(self) -> Mapping[str, Any] | None:
        """Return `seconds` by rule, `disk` in bytes, and a `warning`; None without."""
        ...

    def stop(self) -> None:
        """End the estimate."""
        ...


class LogHandler(LogHandlerBase):
    """Prints a run's progress; see the module."""

    #: What the Snakefile sets when a run begins.
    estimate: ClassVar[Estimate | None] = None

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
        self._is_tty = sys.stdout.isatty()
        self._progress = Progress()
        self._screen = threading.RLock()  # also of the thread that shows the state
        self._shown = 0  # characters of the state that stands on the terminal
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Print what a record of Snakemake means for the one who waits."""
        event = getattr(record, "event", None)
        try:
            self._handle(event, record)
        except BrokenPipeError:  # of standard error: nobody reads on; the run continues
            self._over.set()

    def _handle(self, event: LogEvent | None, record: logging.LogRecord) -> None:
        """Print a record as it is, count it, or leave it out."""
        if str(record.msg).startswith("Nothing to be done"):
            self._print_results(record)
            return
        line = self._refusal(event, record)
        if line is not None:
            with self._screen:
                self._warn(line)
        elif self._is_plain:
            self._plain.handle(record)
        elif event is not None and event in _TOLD:
            self._note(event, record)
        elif record.levelno >= logging.WARNING or not self._is_chatter(event, record):
            with self._screen:
                self._clear()
                self._plain.handle(record)

    def _print_results(self, record: logging.LogRecord) -> None:
        """Print that nothing is to be done, and the results of an earlier run."""
        self._plain.handle(record)
        results = os.environ.get(RESULTS)
        if results and not self.common_settings.dryrun:
            from latflow.report.outcome import outcome_text

            self._write(outcome_text(results))

    def _refusal(self, event: LogEvent | None, record: logging.LogRecord) -> str | None:
        """Return what Snakemake refuses in a line of ours, where there is one."""
        settings = self.common_settings
        if event != LogEvent.ERROR or settings.verbose or settings.debug_dag:
            return None
        return in_one_line(str(getattr(record, "exception", "")), record.getMessage())

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        self._over.set()
        if self.estimate is not None:
            self.estimate.stop()
        for thread in self._threads:
            thread.join()
        with self._screen:
            self._clear()
        super().close()

    @property
    def writes_to_stream(self) -> bool:
        """Tell Snakemake that no other handler is needed."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """Snakemake's own log below `.snakemake/log` stays unchanged."""
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
        text = str(record.msg or "").strip()
        return not text or text.startswith(_CHATTER)

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
                text = facts["log"] and (facts["rule_msg"] or facts["rule_name"])
                log = next(iter(facts["log"] or ()), "")
                self._progress.start(
                    facts["jobid"],
                    facts["rule_name"],
                    text or "",
                    partial(share_of_training, log),
                )
            else:
                line = self._progress.end(facts["job_id"])
                if line is not None:
                    self._print(line)

    def _start_showing(self) -> None:
        if self._threads:
            return
        for work in (self._show, self._expect):
            self._threads.append(threading.Thread(target=work, daemon=True))
            self._threads[-1].start()

    def _expect(self) -> None:
        """Estimate a run that takes a while, and print what it will need."""
        if self._over.wait(_AT_FIRST[self._is_tty]):
            return
        estimate = self.estimate() if self.estimate is not None else None
        with self._screen:
            self._progress.expect(estimate["seconds"] if estimate else {})
            if estimate is None or self._over.is_set():
                return
            from latflow.files import size_text

            self._print(f"      about {size_text(estimate['disk'])} will be written")
            if estimate["warning"]:
                self._warn(f"warning: {estimate['warning']}")

    def _show(self) -> None:
        """Show the state until the run is over."""
        while not self._over.wait(_INTERVALS[self._is_tty]):
            with self._screen:
                state = self._progress.state()
                if not self._is_tty:
                    self._print(state)
                    continue
                width = shutil.get_terminal_size().columns - 1
                line = state if len(state) <= width else f"{state[: width - 3]}..."
                self._write("\r" + line.ljust(self._shown))
                self._shown = len(line)

    def _print(self, line: str) -> None:
        self._clear()
        self._write(f"{line}\n")

    def _warn(self, line: str) -> None:
        self._clear()
        self._plain.stream.write(f"{line}\n")
        self._plain.stream.flush()

    def _clear(self) -> None:
        """Remove the state from the terminal."""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        """Write to standard output; where nobody reads on, the run continues."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self._over.set()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
