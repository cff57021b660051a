"""Tell what produced a result: versions of software, and the git state.

Public: `PACKAGE_ROOT`, `WORKFLOW_FOLDER`, `versions`, `git_state`.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import latflow

PACKAGE_ROOT = Path(latflow.__file__).parent
WORKFLOW_FOLDER = "_workflow"  # in an installed package: the Snakefile and its files
PEERS = ("torch", "numpy", "numba", "lhotse", "kaldifst", "kaldilm", "snakemake")


def versions() -> dict[str, str]:
    """Return versions of latflow, Python, and packages that the numerics rely on."""
    found = {"latflow": latflow.__version__, "python": platform.python_version()}
    for name in PEERS:
        if importlib.util.find_spec(name) is not None:
            found[name] = metadata.version(name)
    return found


def git_state(folder: str | Path = ".") -> str:
    """Return the commit of a checkout, `+changes` if it has any, or `unknown`."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+changes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
