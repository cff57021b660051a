"""Rule write_language: calls latflow.corpus.synthetic.write_synthetic_language."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.corpus.synthetic import write_synthetic_language
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    write_synthetic_language(
        Path(snakemake.output["lexicon"]).parent,
        snakemake.params["options"],
        seed=snakemake.params["seed"],
    )
