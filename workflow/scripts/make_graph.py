"""Rule make_graph: calls latflow.graphs.hclg.make_graph."""

from typing import TYPE_CHECKING

from latflow.graphs.hclg import make_graph
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(make_graph, snakemake)
