"""Rule simulate_corpus: calls latflow.simulation.corpus.simulate_corpus."""

from typing import TYPE_CHECKING

from latflow.simulation.corpus import simulate_corpus
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(simulate_corpus, snakemake)
