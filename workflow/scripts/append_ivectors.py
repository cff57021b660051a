"""Rule append_ivectors: calls latflow.gmm.ivector.append_ivectors."""

from typing import TYPE_CHECKING

from latflow.gmm.ivector import append_ivectors
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(append_ivectors, snakemake)
