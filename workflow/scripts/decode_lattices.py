"""Rule decode_lattices: calls latflow.decode.run.decode."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.decode.run import decode
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    decode(
        Path(snakemake.input["frames"]).parent,
        snakemake.input["graph"],
        Path(snakemake.input["model"]).parent,
        Path(snakemake.input["words"]).parent,
        Path(snakemake.output["lattices"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
