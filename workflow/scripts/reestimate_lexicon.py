"""Rule reestimate_lexicon: calls latflow.align.reestimate.reestimate_lexicon."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.reestimate.reestimate_lexicon", snakemake)
