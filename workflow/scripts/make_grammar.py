"""Rule make_grammar: calls latflow.lang.prepare.make_grammar."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.lang.prepare import make_grammar

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    make_grammar(
        snakemake.input["arpa"],
        Path(snakemake.input["words"]).parent,
        snakemake.output["grammar"],
    )
