"""Rule mix_language_models: calls latflow.decode.rescore_n_best.mix_language_models."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.decode.rescore_n_best.mix_language_models", snakemake)
