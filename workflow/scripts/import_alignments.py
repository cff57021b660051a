"""Rule import_alignments: calls latflow.gmm.kaldi_import.import_alignments."""

from typing import TYPE_CHECKING

from latflow.gmm.kaldi_import import import_alignments
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(import_alignments, snakemake)
