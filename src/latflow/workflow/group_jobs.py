"""Group jobs that fail: why, which Snakemake and its SLURM plug-in keep to themselves.

An executor reports a failed job with its reason, such as `sbatch`'s message when it
refused the job. Snakemake shows it of single jobs alone (9.27, `GroupJob.log_error`).
Where a job can't even be handed to `sbatch`, since its account is not known, say, the
plug-in (2.8) reports the job's rule; a group has none, the report fails, and the run
waits for ever.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from snakemake.jobs import GroupJob
from snakemake.logging import logger

_LOG_ERROR: Any = GroupJob.log_error


def show_reasons() -> None:
    """Make this process's Snakemake show why a group job failed."""

    def log_error(group: Any, msg: str | None = None, **known: Any) -> None:
        """Show the reason, then what Snakemake shows of a group."""
        if msg:
            logger.error(f"Group {group.groupid}: {msg}")
        _LOG_ERROR(group, msg, **known)

    def rule(group: Any) -> SimpleNamespace:
        """Return what stands in place of a rule in messages."""
        return SimpleNamespace(name=f"group {group.groupid}")

    setattr(GroupJob, "log_error", log_error)  # noqa: B010 - Snakemake's own
    setattr(GroupJob, "rule", property(rule))  # noqa: B010 - it has none
