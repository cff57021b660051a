"""Rules download_*: call latflow.corpus.download.fetch."""

from typing import TYPE_CHECKING

from latflow.corpus.download import fetch
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(fetch, snakemake)
