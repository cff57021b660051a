"""Rule train_sat: calls latflow.gmm.sat.train_sat."""

from typing import TYPE_CHECKING

from latflow.gmm.sat import train_sat
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_sat, snakemake)
