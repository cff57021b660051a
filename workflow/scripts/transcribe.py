"""Rule transcribe: calls latflow.serving.transcribe.transcribe_recordings."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.serving.transcribe.transcribe_recordings", snakemake)
