"""Rule build_ctc_tree: calls latflow.align.ctc.build_ctc_tree."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.ctc.build_ctc_tree", snakemake)
