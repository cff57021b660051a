"""Rule simulate_corpus: calls latflow.simulation.corpus.simulate_corpus."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.simulation.corpus.simulate_corpus", snakemake)
