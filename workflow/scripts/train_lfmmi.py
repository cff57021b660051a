"""Rule train_lfmmi: calls latflow.training.lfmmi.train_lfmmi."""

from typing import TYPE_CHECKING

from latflow.training.lfmmi import train_lfmmi
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_lfmmi, snakemake)
