"""Rule join_alignments: calls latflow.decode.joining.join_alignments."""

from typing import TYPE_CHECKING

from latflow.decode.joining import join_alignments
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(join_alignments, snakemake)
