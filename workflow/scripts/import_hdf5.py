"""Rule import_hdf5: calls latflow.training.hdf5.import_split."""

from typing import TYPE_CHECKING

from latflow.training.hdf5 import import_split
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(import_split, snakemake)
