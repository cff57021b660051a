"""Rule complete_lexicon: calls latflow.lang.completion.complete_lexicon."""

from typing import TYPE_CHECKING

from latflow.lang.completion import complete_lexicon
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(complete_lexicon, snakemake)
