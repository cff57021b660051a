"""Rule summarise_cost: calls latflow.report.costs.summarise_costs."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.report.costs import summarise_costs

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    summarise_costs(Path(snakemake.output["table"]).parent, snakemake.output["table"])
