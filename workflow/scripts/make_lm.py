"""Rule make_lm: calls latflow.lang.prepare.make_lm."""

from typing import TYPE_CHECKING

from latflow.lang.prepare import make_lm
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(make_lm, snakemake)
