"""Rule adapt_package: calls latflow.serving.adapting.adapt_package."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.serving.adapting.adapt_package", snakemake)
