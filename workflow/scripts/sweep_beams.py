"""Rule sweep_beams: calls latflow.decode.lattices.sweep_beams."""

from typing import TYPE_CHECKING

from latflow.decode.lattices import sweep_beams
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(sweep_beams, snakemake)
