"""Rule import_lang: calls latflow.lang.prepare.import_lang."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.lang.prepare.import_lang", snakemake)
