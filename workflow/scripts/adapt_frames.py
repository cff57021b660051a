"""Rule adapt_frames: calls latflow.gmm.apply.adapt_frames."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.apply.adapt_frames", snakemake)
