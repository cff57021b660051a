"""Rule join_alignments: calls latflow.decode.joining.join_alignments."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.joining.join_alignments", snakemake)
