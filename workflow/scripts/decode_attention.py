"""Rule decode_attention: calls latflow.decode.attention.decode_attention."""

from typing import TYPE_CHECKING

from latflow.decode.attention import decode_attention
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(decode_attention, snakemake)
