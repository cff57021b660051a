"""Rule find_suspects: calls latflow.align.suspects.find_suspects."""

from typing import TYPE_CHECKING

from latflow.align.suspects import find_suspects
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(find_suspects, snakemake)
