"""One rank of a training: `python -m latflow.training.worker job.json backend`.

Exit status: 0 finished; 75 asked to stop, with a checkpoint from which the same command
continues; 1 failed. What did not finish is reported in `job.json.rank<k>.json`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from latflow.errors import Interrupted, UserError
from latflow.files import atomic_output
from latflow.logs import STALL_MINUTES, log_to_terminal, watched
from latflow.training.distributed import (
    RANK,
    Backend,
    HorovodBackend,
    open_backend,
)
from latflow.training.launch import (
    RESUME_STATUS,
    done_path,
    end_with_parent,
    report_path,
)


def main(argv: Sequence[str]) -> int:
    """Run a rank; returns the exit status."""
    rank = _rank()
    log_to_terminal(verbose=rank == 0)
    with watched(sys.stderr, float(os.environ.get(STALL_MINUTES, "0"))):
        return _work(argv, rank)


def _work(argv: Sequence[str], rank: int) -> int:
    """Do what a rank does; returns the exit status."""
    end_with_parent(signal.SIGKILL)  # at once
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    job, name = Path(argv[0]), argv[1]
    described = json.loads(job.read_text(encoding="utf-8"))
    function, arguments = resolve_name(described["function"]), described["arguments"]
    try:
        if described["elastic"]:
            run_elastic(lambda backend: function(backend, **arguments))
            done_path(job).touch()
        else:
            backend = open_backend(name, torch.device(arguments["device"]))
            rank = backend.rank if name != "none" else rank  # else it is alone
            _run(lambda: function(backend, **arguments), backend)
    except Interrupted:
        _report(job, rank, RESUME_STATUS, "asked to stop")
        return RESUME_STATUS
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher must know
        if isinstance(error, UserError):
            sys.stderr.write(f"rank {rank}: {error}\n")
        else:
            traceback.print_exc()
        _report(job, rank, 1, str(error) or type(error).__name__)
        return 1
    return 0


def _run(train: Callable[[], None], backend: Backend) -> None:
    """Run a training's function; a rank that is asked to stop waits for the others.

    Launchers end all ranks when one has ended, and rank 0 may still be writing the
    checkpoint.
    """
    try:
        train()
    except Interrupted:
        backend.barrier()
        raise
    backend.close()


def run_elastic(train: Callable[[Backend], None]) -> None:
    """Call a training's function, again each time the ranks have changed (Horovod).

    When a rank dies, the operation that the others are in fails. They meet again,
    without it, and the function is called again: it continues from the newest
    checkpoint, with fewer ranks and the same steps (to rounding). Ranks that come back
    are let in after the next checkpoint. So what a death costs is the time since the
    last one.

    The checkpoints must be in a folder that all machines see. Horovod excludes a
    machine on which a rank has died, by name; `launch` gives this machine two names.

    Args:
        train: continues from the newest checkpoint each time it is called.
    """
    backend = HorovodBackend()
    elastic: Any = importlib.import_module("horovod.torch.elastic")
    common: Any = importlib.import_module("horovod.common.elastic")

    class OnDisk(common.State):
        """The ranks' common state is in the checkpoints: nothing is sent."""

        def save(self) -> None:
            """Do nothing: the trainer has written a checkpoint."""

        def restore(self) -> None:
            """Do nothing: the trainer reads it."""

        def sync(self) -> None:
            """Do nothing: the trainer's first operation shares it."""

    state = OnDisk(backend.broadcast_object, lambda: backend.rank)

    @elastic.run
    def attempt(state: Any) -> None:
        backend.renew()
        backend.on_admit = state.check_host_updates
        train(backend)

    attempt(state)
    backend.close()


def _rank() -> int:
    """Return the number that the launcher has given to this process."""
    names = (RANK, "HOROVOD_RANK", "SLURM_PROCID")
    given = (os.environ[name] for name in names if name in os.environ)
    return int(next(given, "0"))


def _report(job: Path, rank: int, status: int, error: str) -> None:
    """Leave word of why this rank did not finish."""
    report = {"rank": rank, "status": status, "error": error, "time": time.time()}
    with atomic_output(report_path(job, rank)) as temporary:
        temporary.write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # No clean-up of threads and groups: a rank that failed may not be able to.
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
