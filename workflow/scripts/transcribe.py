"""Rule transcribe: calls latflow.serving.transcribe.transcribe_recordings."""

from typing import TYPE_CHECKING

from latflow.serving.transcribe import transcribe_recordings
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(transcribe_recordings, snakemake)
