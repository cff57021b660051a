"""Rule import_graph: calls latflow.gmm.kaldi_import.import_graph."""

from typing import TYPE_CHECKING

from latflow.gmm.kaldi_import import import_graph
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(import_graph, snakemake)
