"""Rule join_lattices: calls latflow.decode.joining.join_lattices."""

from typing import TYPE_CHECKING

from latflow.decode.joining import join_lattices
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(join_lattices, snakemake)
