"""Rule decode_adapted: calls latflow.decode.adapt.decode_adapted."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.adapt.decode_adapted", snakemake)
