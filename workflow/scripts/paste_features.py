"""Rule paste_features: calls latflow.features.pasting.paste_features."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.features.pasting.paste_features", snakemake)
