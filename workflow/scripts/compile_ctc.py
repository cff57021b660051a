"""Rule compile_ctc: calls latflow.align.ctc.compile_ctc."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.ctc.compile_ctc", snakemake)
