"""Rule train_network: calls latflow.training.train.train_network."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.training.train import train_network

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    train_network(
        Path(snakemake.input["frames"]).parent,
        snakemake.input["alignments"],
        Path(snakemake.input["source"]).parent,
        Path(snakemake.input["dev_frames"]).parent,
        snakemake.input["dev_alignments"],
        snakemake.input["network"],
        Path(snakemake.output["weights"]).parent,
        options=snakemake.params["options"],
        checkpoints_dir=snakemake.params["checkpoints"],
        threads=snakemake.threads,
        ranks=snakemake.resources["tasks"],
        hosts=snakemake.resources.get("mpi"),
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
