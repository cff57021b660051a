"""Rule import_system: calls latflow.gmm.kaldi_import.import_system."""

from typing import TYPE_CHECKING

from latflow.gmm.kaldi_import import import_system
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(import_system, snakemake)
