"""Snakemake for tests that only plan, without a start for each of them.

A start imports for half as long as planning takes. Here one process has imported what
it needs; each run is a fork of it.
"""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["snakemake.cli", "latflow.workflow.recipe", "latflow.workflow.packages"]
)


def snakemake(folder: Path, *arguments) -> subprocess.CompletedProcess:
    """Run Snakemake with arguments; what it says is kept in a folder."""
    said = [folder / f".said.{name}" for name in ("out", "err")]
    command = [str(argument) for argument in arguments]
    process = _CONTEXT.Process(target=_run, args=(command, *map(str, said)))
    process.start()
    process.join()
    return subprocess.CompletedProcess(
        command, process.exitcode, *(path.read_text() for path in said)
    )


def _run(command: list[str], out: str, err: str) -> None:
    """Be Snakemake."""
    from snakemake.cli import main

    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["snakemake", *command]
    main()
