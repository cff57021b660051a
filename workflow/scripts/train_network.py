"""Rule train_network: calls latflow.training.train.train_network."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.training.train.train_network", snakemake)
