"""Rule train_sequence: calls latflow.sequence.train.train_sequence."""

from typing import TYPE_CHECKING

from latflow.sequence.train import train_sequence
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_sequence, snakemake)
