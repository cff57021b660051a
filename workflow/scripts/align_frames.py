"""Rule align_frames: calls latflow.gmm.align.align."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.align import align
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    align(
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.input["lexicon_fst"]).parent,
        Path(snakemake.input["model"]).parent,
        Path(snakemake.output["alignments"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
