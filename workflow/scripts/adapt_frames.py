"""Rule adapt_frames: calls latflow.gmm.apply.adapt_frames."""

from typing import TYPE_CHECKING

from latflow.gmm.apply import adapt_frames
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(adapt_frames, snakemake)
