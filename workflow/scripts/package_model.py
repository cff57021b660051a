"""Rule package_model: calls latflow.serving.packaging.write_package."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.serving.packaging.write_package", snakemake)
