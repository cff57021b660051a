"""Rule build_chain_tree: calls latflow.gmm.chain_tree.build_chain_tree."""

from typing import TYPE_CHECKING

from latflow.gmm.chain_tree import build_chain_tree
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(build_chain_tree, snakemake)
