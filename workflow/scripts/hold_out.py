"""Rule hold_out: calls latflow.corpus.hold_out.hold_out."""

from typing import TYPE_CHECKING

from latflow.corpus.hold_out import hold_out
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(hold_out, snakemake)
