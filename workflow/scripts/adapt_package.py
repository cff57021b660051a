"""Rule adapt_package: calls latflow.serving.adapting.adapt_package."""

from typing import TYPE_CHECKING

from latflow.serving.adapting import adapt_package
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(adapt_package, snakemake)
