"""Rule make_denominator: calls latflow.graphs.denominator.make_denominator."""

from typing import TYPE_CHECKING

from latflow.graphs.denominator import make_denominator
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(make_denominator, snakemake)
