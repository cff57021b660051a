"""Rule train_deltas: calls latflow.gmm.train.train_deltas."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.train.train_deltas", snakemake)
