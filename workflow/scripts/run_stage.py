"""Script of every rule: calls the stage function that the param `stage` names."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(snakemake)
