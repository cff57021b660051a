"""Rule import_system: calls latflow.gmm.kaldi_system.import_system."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.kaldi_system import import_system
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
import_system(
    Path(snakemake.input["model"]).parent,
    Path(snakemake.input["words"]).parent,
    Path(snakemake.output["model"]).parent,
    features=snakemake.params["features"],
)
