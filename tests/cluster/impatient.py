"""Snakemake whose SLURM executor looks at its jobs each second.

The plug-in waits 10 s longer after each look that finds nothing new, as it should where
jobs take minutes; ours take seconds. Snakemake's own arguments.
"""

import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.next_seconds_between_status_checks = property(
    lambda self: 1.0, lambda self, seconds: None
)

if __name__ == "__main__":
    sys.exit(main())
