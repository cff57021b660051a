"""Rule compile_transcripts: calls latflow.align.graphs.compile_transcripts."""

from typing import TYPE_CHECKING

from latflow.align.graphs import compile_transcripts
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(compile_transcripts, snakemake)
