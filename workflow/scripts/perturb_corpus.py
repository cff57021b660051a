"""Rule perturb_corpus: calls latflow.corpus.perturb.perturb_corpus."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.corpus.perturb.perturb_corpus", snakemake)
