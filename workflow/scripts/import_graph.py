"""Rule import_graph: calls latflow.gmm.kaldi_system.import_graph."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.kaldi_system import import_graph
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
import_graph(
    Path(snakemake.input["graph"]).parent,
    Path(snakemake.input["model"]).parent,
    Path(snakemake.input["words"]).parent,
    snakemake.output["graph"],
)
