"""Rule measure_capacity: calls latflow.serving.capacity.measure_capacity."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.serving.capacity.measure_capacity", snakemake)
