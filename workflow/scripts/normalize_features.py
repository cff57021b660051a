"""Rule normalize_features: calls latflow.features.cmvn.normalize_features."""

from typing import TYPE_CHECKING

from latflow.features.cmvn import normalize_features
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(normalize_features, snakemake)
