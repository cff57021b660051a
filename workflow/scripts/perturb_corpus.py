"""Rule perturb_corpus: calls latflow.corpus.perturb.perturb_corpus."""

from typing import TYPE_CHECKING

from latflow.corpus.perturb import perturb_corpus
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(perturb_corpus, snakemake)
