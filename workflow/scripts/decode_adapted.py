"""Rule decode_adapted: calls latflow.decode.adapt.decode_adapted."""

from typing import TYPE_CHECKING

from latflow.decode.adapt import decode_adapted
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(decode_adapted, snakemake)
