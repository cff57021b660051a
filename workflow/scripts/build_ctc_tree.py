"""Rule build_ctc_tree: calls latflow.align.ctc.build_ctc_tree."""

from typing import TYPE_CHECKING

from latflow.align.ctc import build_ctc_tree
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(build_ctc_tree, snakemake)
