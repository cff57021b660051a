"""Rule train_sat: calls latflow.gmm.sat.train_sat."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.sat.train_sat", snakemake)
