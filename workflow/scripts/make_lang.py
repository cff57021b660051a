"""Rule make_lang: calls latflow.lang.prepare.make_lang."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.lang.prepare import make_lang
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
make_lang(
    snakemake.input["lexicon"],
    Path(snakemake.output["words"]).parent,
    options=snakemake.params["options"],
)
