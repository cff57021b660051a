"""Rule measure_capacity: calls latflow.serving.capacity.measure_capacity."""

from typing import TYPE_CHECKING

from latflow.serving.capacity import measure_capacity
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(measure_capacity, snakemake)
