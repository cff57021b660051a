"""Rule make_lang: calls latflow.lang.prepare.make_lang."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.lang.prepare.make_lang", snakemake)
