"""Rule import_lang: calls latflow.lang.prepare.import_lang."""

from typing import TYPE_CHECKING

from latflow.lang.prepare import import_lang
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(import_lang, snakemake)
