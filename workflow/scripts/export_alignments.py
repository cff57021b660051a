"""Rule export_alignments: calls latflow.align.export.export_alignments."""

from typing import TYPE_CHECKING

from latflow.align.export import export_alignments
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(export_alignments, snakemake)
