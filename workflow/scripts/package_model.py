"""Rule package_model: calls latflow.serving.packaging.write_package."""

from typing import TYPE_CHECKING

from latflow.serving.packaging import write_package
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(write_package, snakemake)
