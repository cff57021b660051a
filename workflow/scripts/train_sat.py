"""Rule train_sat: calls latflow.gmm.sat.train_sat."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.sat import train_sat
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    train_sat(
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.input["lexicon_fst"]).parent,
        snakemake.input["alignments"],
        Path(snakemake.input["source"]).parent,
        Path(snakemake.output["model"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
