"""Do jobs of the workflow in forks of a process that has imported what they need.

Importing torch, Lhotse and Numba takes 1 to 4 s of a core, longer than most jobs of a
small corpus compute. A run of Snakemake on this machine has a server, and a job of one
thread, or whose threads are its own workers, is a fork of it: the process that
Snakemake has started hands its job over and waits. The server imports the module of a
stage when the first job calls it. Without a server (on a cluster's nodes, in conda
environments, on macOS), with several threads of libraries or with a GPU, the process
does the job itself.

A job sees what it would see otherwise: environment, working folder, standard streams,
the signals that are sent to the waiting process, which ends with the job's status. It
is killed when that process is, and the server ends with the run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

# In the environment: the server's socket, or `off`: each process does its own job.
_ADDRESS = "LATFLOW_FORK_SERVER"
_NUMBER = struct.Struct("!q")  # bytes of a job; process and status of a fork
_TOLD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
_MANY = 4  # jobs of a stage before kernels are loaded for further ones
_calls: Counter[str] = Counter()  # jobs by stage, in the server
_loaded: set[str] = set()  # modules whose kernels are loaded, likewise
_LOOK = 1.0  # seconds from one look to the next whether the run is still there
_HANDOVER = 10.0  # seconds that a process may take to hand its job over


@dataclass(frozen=True)
class _Job:
    """A job and what its process has: environment, working folder, arguments, paths."""

    task: Any
    python: str
    environment: dict[str, str]
    folder: str
    arguments: list[str]
    paths: list[str]


def run(task: Any) -> None:
    """Do a job of the workflow, in a fork of the run's server if there is one for it.

    Args:
        task: the object `snakemake` of a script; its param `stage` names the stage
            function, see `latflow.workflow.code_digest.stage`.

    Raises:
        SystemExit: with the job's status, where it was done in a fork.
        TypeError: see `latflow.workflow.jobs.run`.
        UserError: see `latflow.workflow.jobs.run`.
    """
    address = os.environ.get(_ADDRESS)
    is_alone = task.threads == 1 or task.params["stage"].endswith(" workers")
    if address and is_alone and not task.resources.get("gpu"):
        job = _Job(
            task,
            python=sys.executable,
            environment=dict(os.environ),
            folder=str(Path.cwd()),
            arguments=[*sys.argv],
            paths=[*sys.path],
        )
        if (handed_over := _hand_over(address, job)) is not None:
            _wait(*handed_over)
    _do(task)


def start() -> None:
    """Start the server of this run of Snakemake; it ends with this process."""
    if os.environ.get(_ADDRESS) == "off" or not hasattr(os, "pidfd_open"):
        return
    address = str(Path(tempfile.mkdtemp(prefix="latflow-")) / "jobs")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)
        number = listener.fileno()
        subprocess.Popen(
            [sys.executable, "-m", __name__, address, str(number)],
            # libraries read it when they are loaded; jobs of one thread have 1 here
            env={**os.environ, **_ONE_THREAD},
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,
        )
    os.environ[_ADDRESS] = address


def _do(task: Any) -> None:
    """Call a job's stage function."""
    from latflow.workflow import jobs

    jobs.run(_function(task), task)


def _function(task: Any) -> Callable[..., object]:
    """Import a job's stage function."""
    module, _, name = _stage_name(task).rpartition(".")
    return getattr(importlib.import_module(module), name)


def _stage_name(task: Any) -> str:
    """Return the dotted name of a job's stage function."""
    return task.params["stage"].split()[0]


def _hand_over(address: str, job: _Job) -> tuple[socket.socket, int] | None:
    """Hand a job over; returns connection and process of the fork, None without one."""
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        connection.connect(address)
        message = pickle.dumps(job)
        socket.send_fds(connection, [_NUMBER.pack(len(message))], [0, 1, 2])
        connection.sendall(message)
        if (process := _number(connection)) is not None:
            return connection, process
    connection.close()
    return None


def _wait(connection: socket.socket, process: int) -> NoReturn:
    """Wait for a fork, pass signals on to it, and end as it has ended."""
    sent: list[int] = []

    def pass_on(number: int, _: object) -> None:
        sent.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    for number in _TOLD:
        signal.signal(number, pass_on)
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(process)], [], [])
    connection.settimeout(0.0)  # something that the job has left may hold it open
    if (status := _number(connection)) is not None:
        sys.exit(status)
    if sent:
        signal.signal(sent[-1], signal.SIG_DFL)
        os.kill(os.getpid(), sent[-1])
    sys.exit("the job was killed; was there too little memory?")


def _number(connection: socket.socket) -> int | None:
    """Receive a number; None where none comes."""
    with contextlib.suppress(OSError):
        if data := connection.recv(_NUMBER.size, socket.MSG_WAITALL):
            return int(_NUMBER.unpack(data)[0])
    return None


def _serve(listener: socket.socket) -> tuple[socket.socket, _Job] | None:
    """Fork for each job until the run has ended.

    Returns:
        In a fork, the connection and the job; in the server, None at the end.
    """
    run_of = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork ended
    while os.getppid() == run_of:
        if not select.select([listener], [], [], _LOOK)[0]:
            continue
        connection, _ = listener.accept()
        received = _receive(connection)
        # A fork of a process with threads may wait for a lock that nobody holds any
        # more; then the process that has the job does it itself.
        if received is not None and num_threads() == 1 and os.fork() == 0:
            listener.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            job, streams = received
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
                os.close(stream)
            return connection, job
        for stream in received[1] if received else ():
            os.close(stream)
        connection.close()
    return None


def num_threads() -> int:
    """Return the threads of this process, those of libraries, too (Linux)."""
    return len(os.listdir("/proc/self/task"))


def _receive(connection: socket.socket) -> tuple[_Job, list[int]] | None:
    """Receive a job and its standard streams, and import what it calls.

    Returns:
        None where that fails: the process that has the job will find out why.
    """
    connection.settimeout(_HANDOVER)
    streams: list[int] = []
    try:
        data, streams, *_ = socket.recv_fds(connection, _NUMBER.size, 3)
        (size,) = _NUMBER.unpack(data)
        message = bytearray()
        while len(message) < size:
            if not (part := connection.recv(size - len(message))):
                raise OSError("handed over in part")
            message += part
        job = pickle.loads(bytes(message))  # noqa: S301 -- the folder of the socket is ours
        if job.python != sys.executable:
            raise OSError("another environment's")
        _import(job)
    except Exception:  # noqa: BLE001 -- the job's own process meets it again
        for stream in streams:
            os.close(stream)
        return None
    connection.settimeout(None)
    return job, streams


def _import(job: _Job) -> None:
    """Import a stage, and what it would first load when it runs.

    That is the runner, pandas, and, when a stage is called again and again, the
    kernels of Numba that are compiled: of hundreds, which take seconds, a job needs
    some.
    """
    _function(job.task)
    for module in ("latflow.workflow.jobs", "pandas"):
        importlib.import_module(module)
    name = _stage_name(job.task)
    _calls[name] += 1
    if _calls[name] == _MANY and "numba" in sys.modules:
        kernels = importlib.import_module("latflow.kernels")
        kernels.load_kernels(sys.modules.keys() - _loaded)
        _loaded.update(sys.modules)
    gc.freeze()  # in forks collecting garbage would copy all that is shared


def _work(connection: socket.socket, job: _Job) -> int:
    """Do a job in a fork; returns its status, which is sent before."""
    try:
        connection.sendall(_NUMBER.pack(os.getpid()))
    except OSError:  # the waiting process was told to end
        return 1
    threading.Thread(target=_end_with, args=[connection], daemon=True).start()
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.environment)
    tempfile.tempdir = None
    sys.argv[:], sys.path[:] = job.arguments, job.paths
    status = 0
    try:
        _do(job.task)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 -- as the interpreter does
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
        sys.excepthook(type(error), error, error.__traceback__)
    with contextlib.suppress(OSError):
        connection.sendall(_NUMBER.pack(status))
    return status


def _end_with(connection: socket.socket) -> None:
    """Kill the job, and all that it has started, when the waiting process ends."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.killpg(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Serve until the run of Snakemake has ended."""
    address, number = sys.argv[1:]
    received = _serve(socket.socket(fileno=int(number)))
    if received is not None:
        sys.exit(_work(*received))
    Path(address).unlink(missing_ok=True)
    Path(address).parent.rmdir()


if __name__ == "__main__":
    main()
