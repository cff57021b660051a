"""Rule decode_network: calls latflow.decode.lattices.decode_lattices."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.lattices.decode_lattices", snakemake)
