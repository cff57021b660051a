"""Rule supervise_flat_start: calls latflow.align.flat_start.supervise_flat_start."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.flat_start.supervise_flat_start", snakemake)
