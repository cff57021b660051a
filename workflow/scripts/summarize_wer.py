"""Rule summarize_wer: calls latflow.scoring.results.summarize_wer."""

from typing import TYPE_CHECKING

from latflow.scoring.results import summarize_wer
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(summarize_wer, snakemake)
