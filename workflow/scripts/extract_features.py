"""Rule extract_features: calls latflow.features.extract.extract_features."""

from typing import TYPE_CHECKING

from latflow.features.extract import extract_features
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(extract_features, snakemake)
