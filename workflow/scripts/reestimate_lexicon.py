"""Rule reestimate_lexicon: calls latflow.align.reestimate.reestimate_lexicon."""

from typing import TYPE_CHECKING

from latflow.align.reestimate import reestimate_lexicon
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(reestimate_lexicon, snakemake)
