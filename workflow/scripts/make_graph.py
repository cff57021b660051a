"""Rule make_graph: calls latflow.graphs.hclg.make_graph."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.graphs.hclg.make_graph", snakemake)
