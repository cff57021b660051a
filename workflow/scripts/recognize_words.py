"""Rule recognize_words: calls latflow.scoring.score.recognize."""

from typing import TYPE_CHECKING

from latflow.scoring.score import recognize
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(recognize, snakemake)
