"""Rule import_system: calls latflow.gmm.kaldi_system.import_system."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.kaldi_system import import_system
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    import_system(
        Path(snakemake.input["model"]).parent,
        Path(snakemake.input["words"]).parent,
        Path(snakemake.output["model"]).parent,
        features=snakemake.params["features"],
    )
