"""Rule compile_transcripts: calls latflow.sequence.transcripts.compile_transcripts."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.sequence.transcripts import compile_transcripts

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    compile_transcripts(
        [Path(snakemake.input["frames"]).parent],
        Path(snakemake.input["lexicon_fst"]).parent,
        Path(snakemake.input["model"]).parent,
        snakemake.output["graphs"],
        options=snakemake.params["options"],
        threads=snakemake.threads,
    )
