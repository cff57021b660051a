"""Rule supervise_flat_start: calls latflow.align.flat_start.supervise_flat_start."""

from typing import TYPE_CHECKING

from latflow.align.flat_start import supervise_flat_start
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(supervise_flat_start, snakemake)
