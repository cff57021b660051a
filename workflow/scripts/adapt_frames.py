"""Rule adapt_frames: calls latflow.gmm.adapted_frames.adapt_frames."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.adapted_frames import adapt_frames
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    adapt_frames(
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.input["model"]).parent,
        next(iter(snakemake.input["transforms"]), None),
        Path(snakemake.output["frames"]).parent,
        threads=snakemake.threads,
    )
