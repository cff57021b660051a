"""Rule join_with_pauses: calls latflow.corpus.pauses.join_with_pauses."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.corpus.pauses.join_with_pauses", snakemake)
