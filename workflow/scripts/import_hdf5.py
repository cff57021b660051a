"""Rule import_hdf5: calls latflow.training.hdf5.import_split."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.training.hdf5.import_split", snakemake)
