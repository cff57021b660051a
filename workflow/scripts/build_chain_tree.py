"""Rule build_chain_tree: calls latflow.gmm.chain_tree.build_chain_tree."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.chain_tree.build_chain_tree", snakemake)
