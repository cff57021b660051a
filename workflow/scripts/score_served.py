"""Rule score_served: calls latflow.serving.served_scores.score_served."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.serving.served_scores.score_served", snakemake)
