"""Rule train_sequence: calls latflow.sequence.train.train_sequence."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.sequence.train.train_sequence", snakemake)
