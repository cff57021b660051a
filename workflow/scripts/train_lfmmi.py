"""Rule train_lfmmi: calls latflow.training.lfmmi.train_lfmmi."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.training.lfmmi.train_lfmmi", snakemake)
