"""Rule build_full_tree: calls latflow.align.full_tree.build_full_tree."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.full_tree.build_full_tree", snakemake)
