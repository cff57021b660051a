"""Rule prepare_corpus: calls latflow.lang.vocabulary.prepare_corpus."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.lang.vocabulary.prepare_corpus", snakemake)
