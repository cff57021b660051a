"""Rule import_graph: calls latflow.gmm.kaldi_import.import_graph."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.kaldi_import.import_graph", snakemake)
