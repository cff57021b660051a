"""Rule describe_stream: calls latflow.features.live.prepare_live_features."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.features.live.prepare_live_features", snakemake)
