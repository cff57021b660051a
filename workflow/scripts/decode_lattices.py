"""Rule decode_lattices: calls latflow.decode.lattices.decode_lattices."""

from typing import TYPE_CHECKING

from latflow.decode.lattices import decode_lattices
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(decode_lattices, snakemake)
