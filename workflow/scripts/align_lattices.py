"""Rule align_lattices: calls latflow.decode.pronunciations.align_lattices."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.pronunciations.align_lattices", snakemake)
