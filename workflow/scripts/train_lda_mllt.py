"""Rule train_lda_mllt: calls latflow.gmm.lda_mllt.train_lda_mllt."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.lda_mllt.train_lda_mllt", snakemake)
