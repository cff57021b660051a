"""Rule align_package: calls latflow.serving.aligning.align_package."""

from typing import TYPE_CHECKING

from latflow.serving.aligning import align_package
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(align_package, snakemake)
