"""Rule spell_transcripts: calls latflow.align.units.spell_transcripts."""

from typing import TYPE_CHECKING

from latflow.align.units import spell_transcripts
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(spell_transcripts, snakemake)
