"""Rule find_suspects: calls latflow.align.suspects.find_suspects."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.suspects.find_suspects", snakemake)
