"""Rule align_lattices: calls latflow.decode.pronunciations.align_lattices."""

from typing import TYPE_CHECKING

from latflow.decode.pronunciations import align_lattices
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(align_lattices, snakemake)
