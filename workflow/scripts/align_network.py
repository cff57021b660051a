"""Rule align_network: calls latflow.decode.align.align_network."""

from typing import TYPE_CHECKING

from latflow.decode.align import align_network
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(align_network, snakemake)
