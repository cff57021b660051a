"""Rule train_ivectors: calls latflow.gmm.ivector_training.train_ivectors."""

from typing import TYPE_CHECKING

from latflow.gmm.ivector_training import train_ivectors
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_ivectors, snakemake)
