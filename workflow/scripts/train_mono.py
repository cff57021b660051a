"""Rule train_mono: calls latflow.gmm.train.train_mono."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.train.train_mono", snakemake)
