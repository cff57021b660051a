"""Rule prepare_corpus: calls latflow.corpus.prepare.prepare_corpus."""

from typing import TYPE_CHECKING

from latflow.corpus.prepare import prepare_corpus
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(prepare_corpus, snakemake)
