"""Rule refine_boundaries: calls latflow.align.boundaries.refine_boundaries."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.boundaries.refine_boundaries", snakemake)
