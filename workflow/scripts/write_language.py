"""Rule write_language: calls latflow.corpus.synthetic.write_synthetic_language."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.corpus.synthetic import write_synthetic_language
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
write_synthetic_language(
    Path(snakemake.output["lexicon"]).parent,
    snakemake.params["options"],
    seed=snakemake.params["seed"],
)
