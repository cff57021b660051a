"""Rule export_alignments: calls latflow.align.export.export_alignments."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.export.export_alignments", snakemake)
