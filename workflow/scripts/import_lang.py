"""Rule import_lang: calls latflow.gmm.kaldi_system.import_lang."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.gmm.kaldi_system import import_lang
from latflow.jobs import job

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    import_lang(
        Path(snakemake.input["words"]).parent,
        Path(snakemake.output["words"]).parent,
    )
