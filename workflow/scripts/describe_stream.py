"""Rule describe_stream: calls latflow.features.live.prepare_live_features."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.features.live import prepare_live_features
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    prepare_live_features(
        snakemake.input["cuts"],
        Path(snakemake.output["meta"]).parent,
        options=snakemake.params["options"],
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
