"""Start the ranks of a training, and end them all when one ends badly.

A training that is to run on several ranks is described by a job: a JSON file with the
function that each rank calls and its arguments. The ranks are processes
`python -m latflow.training.worker job.json`, started

* by this module, on this machine (`torch`);
* by `horovodrun`, on the given hosts (`horovod`);
* by `srun`, on the machines of the SLURM job that we are in, where the hosts are called
  `srun` (both back ends; `latflow.training.slurm`).

A rank that fails leaves `<job>.rank<k>.json` behind, from which the launcher reports
the first failure in one line: the others fail because of it.

Batch systems send SIGTERM before they take a machine away. The ranks agree on the step
after which they stop, the checkpoint is written, and the process ends with
`RESUME_STATUS`: the same command continues.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType
from typing import Any

import torch

from latflow.errors import Interrupted, UserError
from latflow.files import atomic_output
from latflow.logs import library_output, note_progress
from latflow.training import slurm
from latflow.training.distributed import (
    RANK,
    RENDEZVOUS,
    TIMEOUT,
    Backend,
    meeting_place,
)

RESUME_STATUS = 75  # EX_TEMPFAIL: the same command continues
_GRACE = 5.0  # seconds that ranks get to end by themselves once one has failed
_POLL = 0.05
_HOROVOD_LIMIT = "HOROVOD_GLOO_TIMEOUT_SECONDS"  # to meet, and for an answer; else 30
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it

log = logging.getLogger(__name__)


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGTERM has come since.

    Outside of the main thread, where signals cannot be received, it says no.
    """
    is_asked = threading.Event()

    def note_request(_: int, __: FrameType | None) -> None:
        is_asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield is_asked.is_set
        return
    before = signal.signal(signal.SIGTERM, note_request)
    try:
        yield is_asked.is_set
    finally:
        signal.signal(signal.SIGTERM, before)


def write_job(
    path: str | Path,
    function: str,
    arguments: Mapping[str, Any],
    *,
    elastic: bool = False,
) -> Path:
    """Write a job.

    Args:
        path: of the JSON file.
        function: `module:name` of what each rank calls with the back end and
            the arguments by name.
        arguments: values that JSON knows; `device` is one of them.
        elastic: call the function again when ranks come or go (Horovod).

    Returns:
        The path.
    """
    path = Path(path)
    with atomic_output(path) as temporary:
        values = dict(arguments)
        job = {"function": function, "arguments": values, "elastic": elastic}
        temporary.write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")
    return path


def run_ranks(
    function: str,
    arguments: Mapping[str, Any],
    job: str | Path,
    *,
    ranks: int,
    backend: str,
    threads: int = 1,
    hosts: str | None = None,
    elastic: bool = False,
) -> None:
    """Run a function as one rank in this process, or on several ranks.

    Args:
        function: see `write_job`.
        arguments: see `write_job`.
        job: where the job is described, if there are several ranks.
        ranks: number of processes.
        backend: `none`, `torch` or `horovod`.
        threads: see `launch`.
        hosts: see `launch`.
        elastic: with Horovod, continue when ranks die as long as one is left.

    Raises:
        Interrupted: the ranks were asked to stop, and wrote a checkpoint.
        UserError: the training fails.
    """
    if backend == "none":
        before = torch.get_num_threads()
        torch.set_num_threads(max(1, threads))
        try:
            resolve_name(function)(Backend(), **arguments)
        finally:
            torch.set_num_threads(before)
        return
    if elastic and backend != "horovod":
        log.warning("without Horovod training.elastic does nothing")
        elastic = False
    launch(
        write_job(job, function, arguments, elastic=elastic),
        ranks=ranks,
        backend=backend,
        threads=threads,
        hosts=hosts,
        elastic=elastic,
    )


def threads_of_rank(threads: int, ranks: int, hosts: str | None) -> int:
    """Return the threads of a rank: its SLURM task's, or a share of a machine's.

    Args:
        threads: see `launch`.
        ranks: number of processes.
        hosts: see `launch`.
    """
    if hosts == slurm.NAME:
        return threads
    slots = [host.partition(":")[2] or "1" for host in (hosts or "").split(",")]
    on_a_machine = ranks if hosts is None else max(map(int, slots))
    return max(1, threads // on_a_machine)


def launch(
    job: str | Path,
    *,
    ranks: int,
    backend: str,
    threads: int = 1,
    hosts: str | None = None,
    elastic: bool = False,
) -> None:
    """Run a job on several ranks, and wait for its end.

    Args:
        job: of `write_job`.
        ranks: number of processes.
        backend: `torch` or `horovod`.
        threads: of all ranks of a machine together; with `srun`, of each rank,
            since a job has this many cores for each of its tasks.
        hosts: for Horovod, as `horovodrun -H`; or `srun`; by default this machine.
        elastic: with Horovod, continue when ranks die as long as one is left.

    Raises:
        Interrupted: the ranks were asked to stop, and wrote a checkpoint.
        UserError: a rank failed; the message is the first failing rank's.
    """
    job = Path(job)
    for old in (*reports(job), done_path(job)):
        old.unlink(missing_ok=True)
    is_slurm = hosts == slurm.NAME
    if is_slurm and elastic:
        raise UserError(
            "an elastic training cannot be started by srun, which ends all ranks",
            remedy="set training.elastic to false: a job that is tried again continues",
        )
    if backend != "horovod" and hosts is not None and not is_slurm:
        raise UserError(
            f"torch.distributed cannot start ranks on the hosts {hosts}",
            remedy="install Horovod (make horovod), or start them with srun",
        )
    each = threads_of_rank(threads, ranks, hosts)
    environment = _environment(each)
    if backend == "torch":
        # Listens as long as there is the variable, while the ranks are at work.
        place = meeting_place(socket.gethostname() if is_slurm else "127.0.0.1")
        environment[RENDEZVOUS] = f"{place.host}:{place.port}"
    if backend == "horovod" and not elastic:  # which starts again without who is late
        environment.setdefault(_HOROVOD_LIMIT, f"{TIMEOUT.total_seconds():.0f}")
    starter: list[str] = []  # nobody: we start the ranks ourselves
    if is_slurm:
        starter = slurm.srun(ranks, each)
    elif backend == "horovod":
        starter = _horovodrun(ranks, hosts, elastic=elastic)
    by = Path(starter[0]).name if starter else "this process"
    log.info("%d ranks (%s) started by %s", ranks, backend, by)
    places = [{}] if starter else [_place(rank, ranks) for rank in range(ranks)]
    needs_meeting = is_slurm and backend == "horovod"
    with slurm.horovod_meeting() if needs_meeting else nullcontext({}) as meeting:
        command = [*starter, *_worker(job, backend)]
        with library_output():
            started = [
                _start(command, {**environment, **meeting, **place}) for place in places
            ]
        with _passing_signals(started) as passed:
            statuses = _wait(started)
    if signal.SIGINT in passed and any(statuses):
        raise KeyboardInterrupt
    if not (elastic and done_path(job).exists()):
        _judge(job, [_as_asked(status, passed) for status in statuses])


def reports(job: Path) -> list[Path]:
    """Return the files that ranks have left which did not finish."""
    return sorted(job.parent.glob(f"{job.name}.rank*.json"))


def done_path(job: Path) -> Path:
    """Return the file that the ranks of an elastic job leave at its end.

    Some may have died before, of which `horovodrun` makes a failure.
    """
    return job.with_name(f"{job.name}.done")


def report_path(job: Path, rank: int) -> Path:
    """Return the file in which a rank says why it did not finish."""
    return job.with_name(f"{job.name}.rank{rank}.json")


def _worker(job: Path, backend: str) -> list[str]:
    """Return the command of a rank."""
    return [sys.executable, "-m", "latflow.training.worker", str(job), backend]


def _environment(threads: int) -> dict[str, str]:
    """Return the variables of all ranks."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH')}",
    }


def _place(rank: int, ranks: int) -> dict[str, str]:
    """Return the variables of one rank that we start ourselves; the first has bars."""
    numbers = {RANK: rank, "LATFLOW_SIZE": ranks, "LATFLOW_LOCAL_RANK": rank}
    if rank:
        numbers["TQDM_DISABLE"] = 1
    return {name: str(number) for name, number in numbers.items()}


def _horovodrun(ranks: int, hosts: str | None, *, elastic: bool) -> list[str]:
    """Return Horovod's launcher and its options."""
    program = shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    program = program or shutil.which("horovodrun")
    if program is None:
        raise UserError(
            "horovodrun is not installed",
            remedy="see envs/install_horovod.sh, or use the back end torch",
        )
    if not elastic:
        return [program, "-np", str(ranks), "-H", hosts or f"localhost:{ranks}"]
    # With one name for the machine the first death would exclude all its ranks.
    here = f"localhost:{ranks - ranks // 2},127.0.0.1:{ranks // 2}"
    limits = ["--min-np", "1", "--max-np", str(ranks)]
    return [program, "-np", str(ranks), *limits, "-H", hosts or here]


def _start(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process; what it prints goes where our output goes.

    When we are killed it is asked to end, so that a launcher (horovodrun, srun) ends
    its ranks. Those that are ours have themselves killed instead, at once
    (`latflow.training.worker`): ranks of a killed job that went on would write
    checkpoints beside those of the job's second attempt.
    """
    return subprocess.Popen(
        command,
        env=dict(environment),
        preexec_fn=end_with_parent,  # noqa: PLW1509 - one call of the kernel
    )


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Make the kernel send a signal to this process when its parent ends (Linux).

    Args:
        number: of the signal.
    """
    if _PRCTL is not None:
        _PRCTL(_SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0)


@contextmanager
def _passing_signals(
    started: Sequence[subprocess.Popen[bytes]],
) -> Iterator[set[int]]:
    """Hand a request to stop on to the ranks; kill what is left at the end.

    Yields:
        The numbers of the signals that have been handed on.
    """
    passed: set[int] = set()

    def hand_on(number: int, _: FrameType | None) -> None:
        passed.add(number)
        for process in started:
            if process.poll() is None:
                process.send_signal(number)

    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            # what a shell runs in the background ignores Ctrl-C, and still shall
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, hand_on)
    except ValueError:
        log.debug("not in the main thread: signals are not handed on to the ranks")
    try:
        yield passed
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait until all have ended, or some time after the first failure."""
    deadline: float | None = None
    while True:
        statuses = [process.poll() for process in started]
        if all(status is not None for status in statuses):
            break
        has_failed = any(s not in {None, 0, RESUME_STATUS} for s in statuses)
        if has_failed and deadline is None:
            deadline = time.monotonic() + _GRACE
        if deadline is not None and time.monotonic() > deadline:
            log.error("a rank failed; ending the others")
            break
        note_progress()  # the ranks watch over themselves
        time.sleep(_POLL)
    return [1 if status is None else status for status in statuses]


def _as_asked(status: int, passed: Collection[int]) -> int:
    """Return a rank's status; one that our own request has ended was asked to stop.

    A rank that is still starting, or has trained and writes its model, does not listen
    for requests: SIGTERM ends it, and its last checkpoint is where it continues.
    """
    is_asked = status == -signal.SIGTERM and signal.SIGTERM in passed
    return RESUME_STATUS if is_asked else status


def _judge(job: Path, statuses: Sequence[int]) -> None:
    """Turn the ranks' ends into an exception, if one did not finish."""
    if not any(statuses):
        return
    found = [json.loads(path.read_text(encoding="utf-8")) for path in reports(job)]
    failures = [report for report in found if report["status"] != RESUME_STATUS]
    killed = [(k, -status) for k, status in enumerate(statuses) if status < 0]
    if (found or RESUME_STATUS in statuses) and not failures and not killed:
        raise Interrupted
    remedy = "start again to go on from the last checkpoint"
    if killed:
        rank, number = killed[0]
        who = f"rank {rank}" if len(statuses) > 1 else "the launcher of the ranks"
        what = f"{who} was killed by signal {number}"
        raise UserError(f"{what} (9 is often a lack of memory)", remedy=remedy)
    if failures:
        first = min(failures, key=lambda report: report["time"])
        what = f"rank {first['rank']} failed: {first['error']}"
        remedy = f"see the ranks' output; {remedy}"
        raise UserError(what, remedy=remedy)
    codes = ", ".join(str(status) for status in statuses)
    what = f"the ranks ended with exit status {codes} and no word why"
    raise UserError(what, remedy=f"see their output; {remedy}")
