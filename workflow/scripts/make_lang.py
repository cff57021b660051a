"""Rule make_lang: calls latflow.lang.prepare.make_lang."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.lang.prepare import make_lang

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    make_lang(
        snakemake.input["lexicon"],
        Path(snakemake.output["words"]).parent,
        options=snakemake.params["options"],
    )
