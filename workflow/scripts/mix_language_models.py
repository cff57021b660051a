"""Rule mix_language_models: calls latflow.decode.rescore_n_best.mix_language_models."""

from typing import TYPE_CHECKING

from latflow.decode.rescore_n_best import mix_language_models
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(mix_language_models, snakemake)
