"""Rules download_*: call latflow.corpus.download.fetch."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.corpus.download.fetch", snakemake)
