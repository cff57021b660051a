"""Rule extract_features: calls latflow.features.extract.extract_features."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.features.extract import extract_features
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    extract_features(
        snakemake.input["cuts"],
        Path(snakemake.output["cuts"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
