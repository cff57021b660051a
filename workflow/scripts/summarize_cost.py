"""Rule summarize_cost: calls latflow.report.costs.summarize_costs."""

from typing import TYPE_CHECKING

from latflow.report.costs import summarize_costs
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(summarize_costs, snakemake)
