"""Rule summarize_cost: calls latflow.report.costs.summarize_costs."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.report.costs.summarize_costs", snakemake)
