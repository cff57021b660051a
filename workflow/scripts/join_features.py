"""Rule join_features: calls latflow.features.joining.join_features."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.features.joining.join_features", snakemake)
