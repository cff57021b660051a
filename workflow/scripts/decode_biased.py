"""Rule decode_biased: calls latflow.decode.biased.decode_biased."""

from typing import TYPE_CHECKING

from latflow.decode.biased import decode_biased
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(decode_biased, snakemake)
