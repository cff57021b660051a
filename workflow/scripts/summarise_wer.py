"""Rule summarise_wer: calls latflow.scoring.score.summarise_wer."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.scoring.score import summarise_wer

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    systems, sets = snakemake.params["systems"], snakemake.params["sets"]
    pairs = [(system, name) for system in systems for name in sets]
    folders = [Path(path).parent for path in snakemake.input]
    summarise_wer(dict(zip(pairs, folders, strict=True)), snakemake.output["table"])
