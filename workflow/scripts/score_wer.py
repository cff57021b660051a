"""Rule score_wer: calls latflow.scoring.score.score."""

from typing import TYPE_CHECKING

from latflow.scoring.score import score
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(score, snakemake)
