"""Rule train_lda_mllt: calls latflow.gmm.lda_mllt.train_lda_mllt."""

from typing import TYPE_CHECKING

from latflow.gmm.lda_mllt import train_lda_mllt
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_lda_mllt, snakemake)
