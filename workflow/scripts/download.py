"""Rules download_*: call latflow.corpus.download.fetch."""

from typing import TYPE_CHECKING

from latflow.corpus.download import fetch
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    fetch(snakemake.params["url"], snakemake.output[0])
