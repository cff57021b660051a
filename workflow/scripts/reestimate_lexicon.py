"""Rule reestimate_lexicon: calls latflow.lang.reestimate.reestimate_lexicon."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.lang.reestimate import reestimate_lexicon
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
reestimate_lexicon(
    Path(snakemake.input["lexicon_fst"]).parent,
    snakemake.input["alignments"],
    Path(snakemake.input["model"]).parent,
    Path(snakemake.input["frames"]).parent,
    Path(snakemake.output["words"]).parent,
)
