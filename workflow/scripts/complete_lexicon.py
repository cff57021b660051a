"""Rule complete_lexicon: calls latflow.lang.completion.complete_lexicon."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.lang.completion.complete_lexicon", snakemake)
