"""Rule make_grammar: calls latflow.lang.prepare.make_grammar."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.lang.prepare import make_grammar
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
make_grammar(
    snakemake.input["arpa"],
    Path(snakemake.input["words"]).parent,
    snakemake.output["grammar"],
)
