"""Rule train_sequence: calls latflow.sequence.train.train_sequence."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.sequence.train import Sources, train_sequence

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

given = snakemake.input
with job(snakemake):
    train_sequence(
        Sources(
            frames=str(Path(given["frames"]).parent),
            dev_frames=str(Path(given["dev_frames"]).parent),
            parent=str(Path(given["parent"]).parent),
            lang=str(Path(given["words"]).parent),
            denominator=given["denominator"],
            graph=given["graph"],
            scales=given["scales"],
            alignments=given["alignments"],
            training_graphs=next(iter(given["training_graphs"]), None),
            teacher=next((str(Path(path).parent) for path in given["teacher"]), None),
        ),
        Path(snakemake.output["weights"]).parent,
        options=snakemake.params["options"],
        checkpoints_dir=snakemake.params["checkpoints"],
        threads=snakemake.threads,
        ranks=snakemake.resources["tasks"],
        hosts=snakemake.resources.get("mpi"),
    )
