"""Rule normalise_features: calls latflow.features.extract.normalise_features."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.features.extract import normalise_features
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    normalise_features(
        snakemake.input["cuts"],
        Path(snakemake.output["frames"]).parent,
        options=snakemake.params["options"],
    )
