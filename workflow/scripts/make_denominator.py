"""Rule make_denominator: calls latflow.graphs.denominator.make_denominator."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.graphs.denominator.make_denominator", snakemake)
