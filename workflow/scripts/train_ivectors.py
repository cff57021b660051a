"""Rule train_ivectors: calls latflow.gmm.ivector_training.train_ivectors."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.ivector_training.train_ivectors", snakemake)
