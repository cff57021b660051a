"""Rule align_frames: calls latflow.gmm.alignment.align_gmm."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.gmm.alignment.align_gmm", snakemake)
