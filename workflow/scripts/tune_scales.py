"""Rule tune_scales: calls latflow.scoring.tune.tune_scales."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.scoring.tune.tune_scales", snakemake)
