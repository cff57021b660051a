"""Rule normalise_features: calls latflow.features.extract.normalise_features."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.features.extract import normalise_features
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
normalise_features(
    snakemake.input["cuts"],
    Path(snakemake.output["frames"]).parent,
    options=snakemake.params["options"],
)
