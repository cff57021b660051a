"""Snakemake's logger plugin `latflow`: shows how far a run is; `--logger latflow`.

Snakemake finds logger plugins by the names of packages, which is why this one does not
lie in `latflow`. It imports nothing from there: Snakemake loads it before it reads the
Snakefile, which chooses the package that a checkout brings along.
"""

from snakemake_logger_plugin_latflow.run_progress import LogHandler

__all__ = ["LogHandler"]
