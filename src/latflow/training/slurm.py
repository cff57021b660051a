"""Ranks that SLURM's `srun` starts, on the machines of the job that we run in.

The launcher runs once, on the job's first machine; `srun` starts the ranks as a step
of the same job, on all its machines, and ends them all when one fails. They find each
other without MPI: with torch.distributed at a port of the first machine, with Horovod
at a small HTTP server in the launcher, where each rank leaves its address for the
others (what `horovodrun` does; but it starts ranks by ssh, outside of SLURM's limits).

Snakemake's executor plug-in takes most of SLURM's variables from its jobs, and with
them srun's defaults: everything is on srun's command line.

Source: SLURM's manual pages of srun and squeue; `horovod/runner/gloo_run.py`.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from latflow.errors import UserError

NAME = "srun"  # what is named in place of hosts
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def srun(ranks: int, threads: int) -> list[str]:
    """Return the command that starts ranks on all machines of this SLURM job.

    Args:
        ranks: of all machines together; those of a machine have following numbers.
        threads: processor cores of each rank.

    Raises:
        UserError: not in a SLURM job, or `squeue` does not know it.
    """
    return [
        NAME,
        "--overlap",  # beside the step or script that we are
        "--kill-on-bad-exit=1",
        f"--nodes={_num_machines()}",
        f"--ntasks={ranks}",
        f"--cpus-per-task={threads}",
        "--distribution=block",
    ]


def _num_machines() -> int:
    """Return the number of our job's machines; its variable may be gone."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise UserError(
            "ranks are to be started by srun, but this is not a job of SLURM",
            remedy="run with --profile profiles/slurm, or without the resource mpi",
        )
    command = ["squeue", "--noheader", "--format=%D", f"--jobs={job}"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(printed.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise UserError(
            f"squeue does not report the machines of job {job} ({error})",
            remedy="check that squeue works on the machines that run jobs",
        ) from error


@contextmanager
def horovod_meeting() -> Iterator[dict[str, str]]:
    """Serve the place where Horovod's ranks meet.

    Yields:
        Variables that give its address to the ranks.
    """
    http: Any = importlib.import_module("horovod.runner.http.http_server")

    class Board(http.RendezvousHandler):
        """Keeps all addresses.

        Horovod's own removes those of a group when all of it have met, for which it
        must know the groups beforehand; we know them only when srun has placed the
        ranks, and the ranks meet but once.
        """

        def do_DELETE(self) -> None:  # noqa: N802 - the name that http.server calls
            """Answer 200."""
            self.send_status_code(http.OK)

    with http.RendezvousHTTPServer(("", 0), Board, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostname(),
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
            }
        finally:
            server.shutdown()
            thread.join()


def horovod_place(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Horovod's variables of a rank, from those that srun gives a task.

    Args:
        environment: of a task of a step.

    Returns:
        Variables: number of the rank among all, among those of its machine (`LOCAL`),
        and among those with the same local number (`CROSS`); with the counts of each.
    """
    machine = int(environment["SLURM_NODEID"])
    local_rank = int(environment["SLURM_LOCALID"])
    tasks = _tasks_by_machine(environment["SLURM_STEP_TASKS_PER_NODE"])
    numbers = {
        "RANK": int(environment["SLURM_PROCID"]),
        "SIZE": sum(tasks),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": tasks[machine],
        "CROSS_RANK": sum(count > local_rank for count in tasks[:machine]),
        "CROSS_SIZE": sum(count > local_rank for count in tasks),
    }
    place = {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
    return {"HOROVOD_HOSTNAME": environment["SLURMD_NODENAME"], **place}


def _tasks_by_machine(layout: str) -> list[int]:
    """Return the counts of tasks from SLURM's short form: `2(x3),1` is [2, 2, 2, 1]."""
    counts: list[int] = []
    for count, times in _TASKS.findall(layout):
        counts += [int(count)] * int(times or 1)
    return counts
