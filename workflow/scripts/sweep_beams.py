"""Rule sweep_beams: calls latflow.decode.beam_sweep.sweep_beams."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.decode.beam_sweep import sweep_beams
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    sweep_beams(
        Path(snakemake.input["frames"]).parent,
        snakemake.input["graph"],
        Path(snakemake.input["model"]).parent,
        Path(snakemake.input["words"]).parent,
        Path(snakemake.input["lattices"]).parent,
        Path(snakemake.output["sweep"]).parent,
        options=snakemake.params["options"],
        threads=snakemake.threads,
    )
