"""Tell what produced a result: versions of software, and the git state."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import latflow
from latflow.files import read_json

PACKAGE_ROOT = Path(latflow.__file__).parent
WORKFLOW_FOLDER = "_workflow"  # in an installed package: the Snakefile and its files
# What all records have, by its type.
_RECORD = {
    dict: ("wildcards", "outputs", "params", "seeds", "versions"),
    list: ("inputs",),
    object: (
        *("rule", "threads", "commit", "started", "seconds"),
        *("code_digest", "params_digest", "config_digest"),
    ),
}
PEERS = ("torch", "numpy", "numba", "lhotse", "kaldifst", "snakemake")


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


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of a job; see `latflow.workflow.jobs`.

    Raises:
        UserError: the file is missing, or no such record.
    """

    def checked(record: dict[str, Any]) -> dict[str, Any]:
        for kind, names in _RECORD.items():
            for name in names:
                if not isinstance(record[name], kind):
                    raise TypeError(f"{name} is {record[name]!r}")
        for made in record["outputs"].values():
            int(made["bytes"])
        return record

    return read_json(path, checked, "a record of a job", "remove it")
