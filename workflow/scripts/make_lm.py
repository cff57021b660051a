"""Rule make_lm: calls latflow.lang.prepare.make_lm."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.lang.prepare import make_lm

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    make_lm(
        snakemake.output["arpa"],
        options=snakemake.params["options"],
        lang_dir=Path(snakemake.input["words"]).parent,
        texts=list(snakemake.input["text"]),
    )
