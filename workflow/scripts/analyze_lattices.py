"""Rule analyze_lattices: calls latflow.scoring.lattice_quality.analyze_lattices."""

from typing import TYPE_CHECKING

from latflow.scoring.lattice_quality import analyze_lattices
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(analyze_lattices, snakemake)
