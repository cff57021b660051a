"""Rule extract_features: calls latflow.features.extract.extract_features."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.features.extract.extract_features", snakemake)
