"""Rule make_lm: calls latflow.lang.prepare.make_lm."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.lang.prepare import make_lm
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
make_lm(
    snakemake.output["arpa"],
    options=snakemake.params["options"],
    lang_dir=Path(snakemake.input["words"]).parent,
    texts=list(snakemake.input["text"]),
)
