"""Rule prepare_corpus: calls latflow.corpus.prepare.prepare_corpus."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.corpus.prepare import prepare_corpus
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
prepare_corpus(
    snakemake.params["source"],
    snakemake.wildcards["split"],
    Path(snakemake.output[0]).parent,
    seed=snakemake.params["seed"],
    threads=snakemake.threads,
    max_skipped_fraction=snakemake.params["max_skipped_fraction"],
)
