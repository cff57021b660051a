"""Rule hold_out: calls latflow.corpus.prepare.hold_out."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.corpus.prepare import hold_out
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    hold_out(
        Path(snakemake.input[0]).parent,
        Path(snakemake.output[0]).parent,
        Path(snakemake.output[4]).parent,
        by=snakemake.params["dev"]["by"],
        fraction=snakemake.params["dev"]["fraction"],
        seed=snakemake.params["seed"],
    )
