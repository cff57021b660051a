"""Rule describe_stream: calls latflow.features.live.prepare_live_features."""

from typing import TYPE_CHECKING

from latflow.features.live import prepare_live_features
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(prepare_live_features, snakemake)
