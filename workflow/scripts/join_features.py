"""Rule join_features: calls latflow.features.joining.join_features."""

from typing import TYPE_CHECKING

from latflow.features.joining import join_features
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(join_features, snakemake)
