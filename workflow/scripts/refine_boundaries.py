"""Rule refine_boundaries: calls latflow.align.boundaries.refine_boundaries."""

from typing import TYPE_CHECKING

from latflow.align.boundaries import refine_boundaries
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(refine_boundaries, snakemake)
