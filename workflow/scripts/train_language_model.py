"""Rule train_language_model: trains a neural language model on a text."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.training.language_model.train_language_model", snakemake)
