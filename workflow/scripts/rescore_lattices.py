"""Rule rescore_lattices: calls latflow.decode.rescore.rescore_lattices."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.decode.rescore import rescore_lattices
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
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
