"""Rule score_wer: calls latflow.scoring.score.score."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.scoring.score import score

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    score(
        snakemake.input["lattices"],
        snakemake.input["cuts"],
        Path(snakemake.input["words"]).parent,
        Path(snakemake.input["model"]).parent,
        snakemake.input["scales"],
        Path(snakemake.output["text"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
    )
