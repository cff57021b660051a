"""Rule analyse_lattices: calls latflow.scoring.lattice_quality.analyse_lattices."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.scoring.lattice_quality import analyse_lattices

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    analyse_lattices(
        snakemake.input["lattices"],
        snakemake.input["cuts"],
        Path(snakemake.input["words"]).parent,
        snakemake.input["scales"],
        Path(snakemake.output["summary"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
    )
