"""Rule tune_scales: calls latflow.decode.tune.tune_scales."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.decode.tune import tune_scales
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    tune_scales(
        Path(snakemake.input["lattices"]).parent,
        snakemake.input["cuts"],
        Path(snakemake.input["words"]).parent,
        Path(snakemake.output["scales"]).parent,
        options=snakemake.params["options"],
    )
