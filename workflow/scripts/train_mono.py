"""Rule train_mono: calls latflow.gmm.train.train_mono."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.train import train_mono
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    train_mono(
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.input["lexicon_fst"]).parent,
        Path(snakemake.output["model"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
