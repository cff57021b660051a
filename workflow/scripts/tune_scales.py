"""Rule tune_scales: calls latflow.decode.tune.tune_scales."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.decode.tune import tune_scales
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
tune_scales(
    Path(snakemake.input["lattices"]).parent,
    snakemake.input["cuts"],
    Path(snakemake.input["words"]).parent,
    Path(snakemake.output["scales"]).parent,
    options=snakemake.params["options"],
)
