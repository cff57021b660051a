"""Rule hold_out: calls latflow.corpus.prepare.hold_out."""

from typing import TYPE_CHECKING

from latflow.corpus.prepare import hold_out
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(hold_out, snakemake)
