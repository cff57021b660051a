"""Rules download_*: call latflow.corpus.recipes.fetch."""

from typing import TYPE_CHECKING

from latflow.corpus.recipes import fetch
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(fetch, snakemake)
