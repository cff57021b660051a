"""Rule tune_scales: calls latflow.scoring.tune.tune_scales."""

from typing import TYPE_CHECKING

from latflow.scoring.tune import tune_scales
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(tune_scales, snakemake)
