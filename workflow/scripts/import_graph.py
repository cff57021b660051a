"""Rule import_graph: calls latflow.gmm.kaldi_system.import_graph."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.kaldi_system import import_graph
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    import_graph(
        Path(snakemake.input["graph"]).parent,
        Path(snakemake.input["model"]).parent,
        Path(snakemake.input["words"]).parent,
        snakemake.output["graph"],
    )
