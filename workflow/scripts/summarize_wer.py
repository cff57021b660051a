"""Rule summarize_wer: calls latflow.scoring.results.summarize_wer."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.scoring.results.summarize_wer", snakemake)
