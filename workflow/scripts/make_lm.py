"""Rule make_lm: calls latflow.lang.prepare.make_lm."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.lang.prepare.make_lm", snakemake)
