"""Rule align_frames: calls latflow.gmm.alignment.align_gmm."""

from typing import TYPE_CHECKING

from latflow.gmm.alignment import align_gmm
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(align_gmm, snakemake)
