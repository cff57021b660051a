"""Rule make_lang: calls latflow.lang.prepare.make_lang."""

from typing import TYPE_CHECKING

from latflow.lang.prepare import make_lang
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(make_lang, snakemake)
