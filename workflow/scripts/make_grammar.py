"""Rule make_grammar: calls latflow.lang.prepare.make_grammar."""

from typing import TYPE_CHECKING

from latflow.lang.prepare import make_grammar
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(make_grammar, snakemake)
