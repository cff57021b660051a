"""Rule rescore_n_best: calls latflow.decode.rescore_n_best.rescore_n_best."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.rescore_n_best.rescore_n_best", snakemake)
