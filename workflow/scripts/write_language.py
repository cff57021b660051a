"""Rule write_language: calls latflow.corpus.synthetic.write_synthetic_language."""

from typing import TYPE_CHECKING

from latflow.corpus.synthetic import write_synthetic_language
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(write_synthetic_language, snakemake)
