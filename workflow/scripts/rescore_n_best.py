"""Rule rescore_n_best: calls latflow.decode.rescore_n_best.rescore_n_best."""

from typing import TYPE_CHECKING

from latflow.decode.rescore_n_best import rescore_n_best
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(rescore_n_best, snakemake)
