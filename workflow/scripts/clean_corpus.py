"""Rule clean_corpus: calls latflow.align.cleanup.clean_corpus."""

from typing import TYPE_CHECKING

from latflow.align.cleanup import clean_corpus
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(clean_corpus, snakemake)
