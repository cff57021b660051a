"""Rule decode_attention: calls latflow.decode.attention.decode_attention."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.attention.decode_attention", snakemake)
