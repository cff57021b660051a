"""Rule recognize_words: calls latflow.scoring.score.recognize."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.scoring.score.recognize", snakemake)
