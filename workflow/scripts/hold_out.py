"""Rule hold_out: calls latflow.corpus.hold_out.hold_out."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.corpus.hold_out.hold_out", snakemake)
