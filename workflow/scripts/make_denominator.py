"""Rule make_denominator: calls latflow.sequence.denominator.make_denominator."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.sequence.denominator import make_denominator

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    make_denominator(
        Path(snakemake.input["words"]).parent,
        [snakemake.input["cuts"]],
        Path(snakemake.input["model"]).parent,
        snakemake.output["graph"],
        options=snakemake.params["options"],
    )
