"""Rule import_alignments: calls latflow.gmm.kaldi_alignments.import_alignments."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.kaldi_alignments import import_alignments
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    import_alignments(
        snakemake.params["folder"],
        Path(snakemake.input["model"]).parent,
        Path(snakemake.input["words"]).parent,
        Path(snakemake.input["frames"]).parent,
        Path(snakemake.output["alignments"]).parent,
        max_skipped_fraction=snakemake.params["max_skipped_fraction"],
    )
