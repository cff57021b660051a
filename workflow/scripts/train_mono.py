"""Rule train_mono: calls latflow.gmm.train.train_mono."""

from typing import TYPE_CHECKING

from latflow.gmm.train import train_mono
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_mono, snakemake)
