"""Rule align_network: calls latflow.decode.align.align_network."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.align.align_network", snakemake)
