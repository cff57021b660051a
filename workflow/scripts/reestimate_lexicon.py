"""Rule reestimate_lexicon: calls latflow.lang.reestimate.reestimate_lexicon."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.lang.reestimate import reestimate_lexicon

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    reestimate_lexicon(
        Path(snakemake.input["lexicon_fst"]).parent,
        snakemake.input["alignments"],
        Path(snakemake.input["model"]).parent,
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.output["words"]).parent,
    )
