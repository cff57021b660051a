"""Rule train_deltas: calls latflow.gmm.train.train_deltas."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.train import train_deltas
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    train_deltas(
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.input["lexicon_fst"]).parent,
        snakemake.input["alignments"],
        Path(snakemake.input["source"]).parent,
        Path(snakemake.output["model"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
