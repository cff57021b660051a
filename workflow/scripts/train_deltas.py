"""Rule train_deltas: calls latflow.gmm.train.train_deltas."""

from typing import TYPE_CHECKING

from latflow.gmm.train import train_deltas
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_deltas, snakemake)
