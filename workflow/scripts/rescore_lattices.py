"""Rule rescore_lattices: calls latflow.decode.rescore.rescore_lattices."""

from typing import TYPE_CHECKING

from latflow.decode.rescore import rescore_lattices
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(rescore_lattices, snakemake)
