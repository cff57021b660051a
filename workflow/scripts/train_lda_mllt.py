"""Rule train_lda_mllt: calls latflow.gmm.lda_mllt.train_lda_mllt."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.lda_mllt import train_lda_mllt
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    train_lda_mllt(
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.input["lexicon_fst"]).parent,
        snakemake.input["alignments"],
        Path(snakemake.input["source"]).parent,
        Path(snakemake.output["model"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
