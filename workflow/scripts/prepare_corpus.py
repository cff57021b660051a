"""Rule prepare_corpus: calls latflow.corpus.prepare.prepare_corpus."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.corpus.prepare import prepare_corpus
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    prepare_corpus(
        snakemake.params["source"],
        snakemake.wildcards["split"],
        Path(snakemake.output[0]).parent,
        seed=snakemake.params["seed"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
