"""Rule rescore_lattices: calls latflow.decode.rescore.rescore_lattices."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.decode.rescore import rescore_lattices
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    rescore_lattices(
        snakemake.input["lattices"],
        snakemake.input["grammar"],
        snakemake.input["arpa"],
        Path(snakemake.input["words"]).parent,
        Path(snakemake.output["lattices"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
