"""Rules download_*: call latflow.corpus.download.fetch."""

from typing import TYPE_CHECKING

from latflow.corpus.download import fetch
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
fetch(snakemake.params["url"], snakemake.output[0])
