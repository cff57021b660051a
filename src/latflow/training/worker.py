"""One rank of a training: `python -m latflow.training.worker job.json backend`.

Exit status: 0 finished; 75 asked to stop, with a checkpoint from which the same command
goes on; 1 failed. What did not finish is told in `job.json.rank<k>.json`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.logs import log_to_terminal
from latflow.training.distributed import open_backend
from latflow.training.interruption import RESUME_STATUS, Interrupted
from latflow.training.launch import report_path

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def main(arguments: Sequence[str]) -> int:
    """Run a rank; returns the exit status."""
    log_to_terminal(verbose=True)
    _die_with_launcher()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    job, name = Path(arguments[0]), arguments[1]
    described = json.loads(job.read_text(encoding="utf-8"))
    rank = int(os.environ.get("LATFLOW_RANK", os.environ.get("SLURM_PROCID", "0")))
    try:
        device = torch.device(described["arguments"]["device"])
        backend = open_backend(name, device)
        rank = backend.rank
        _function(described["function"])(backend, **described["arguments"])
        backend.close()
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


def _function(name: str) -> Callable[..., Any]:
    """The function that a job names, `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _report(job: Path, rank: int, status: int, error: str) -> None:
    """Leave word of why this rank did not finish."""
    told = {"rank": rank, "status": status, "error": error, "time": time.time()}
    with atomic_output(report_path(job, rank)) as temporary:
        temporary.write_text(json.dumps(told) + "\n", encoding="utf-8")


def _die_with_launcher() -> None:
    """Have the kernel end this process when the one that started it is killed.

    Otherwise ranks of a killed job would train on, and write checkpoints beside those
    of the job's second attempt.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    # No clean-up of threads and groups: a rank that failed may not be able to.
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
