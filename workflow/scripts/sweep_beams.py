"""Rule sweep_beams: calls latflow.decode.lattices.sweep_beams."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.lattices.sweep_beams", snakemake)
