"""Rule build_full_tree: calls latflow.align.full_tree.build_full_tree."""

from typing import TYPE_CHECKING

from latflow.align.full_tree import build_full_tree
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(build_full_tree, snakemake)
