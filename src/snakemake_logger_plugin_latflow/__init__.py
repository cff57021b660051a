"""Snakemake's logger plugin `latflow`: shows how far a run is; `--logger latflow`.

Snakemake finds logger plugins by the names of packages, which is why this one does not
lie in `latflow`.
"""

from latflow.workflow.run_progress import LogHandler

__all__ = ["LogHandler"]
