"""Rule train_language_model: trains a neural language model on a text."""

from typing import TYPE_CHECKING

from latflow.training.language_model import train_language_model
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(train_language_model, snakemake)
