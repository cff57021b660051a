"""Rule clean_corpus: calls latflow.align.cleanup.clean_corpus."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.cleanup.clean_corpus", snakemake)
