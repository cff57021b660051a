"""Rule align_package: calls latflow.serving.aligning.align_package."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.serving.aligning.align_package", snakemake)
