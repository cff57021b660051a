"""Rule train_network: calls latflow.training.train.train_network."""

from typing import TYPE_CHECKING

from latflow.training.train import train_network
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_network, snakemake)
