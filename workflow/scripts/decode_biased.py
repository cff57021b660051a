"""Rule decode_biased: calls latflow.decode.biased.decode_biased."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.biased.decode_biased", snakemake)
