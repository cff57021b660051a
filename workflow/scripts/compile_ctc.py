"""Rule compile_ctc: calls latflow.align.ctc.compile_ctc."""

from typing import TYPE_CHECKING

from latflow.align.ctc import compile_ctc
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(compile_ctc, snakemake)
