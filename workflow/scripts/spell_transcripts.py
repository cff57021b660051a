"""Rule spell_transcripts: calls latflow.align.units.spell_transcripts."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.units.spell_transcripts", snakemake)
