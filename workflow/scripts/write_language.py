"""Rule write_language: calls latflow.corpus.synthetic.write_synthetic_language."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.corpus.synthetic.write_synthetic_language", snakemake)
