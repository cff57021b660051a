"""Rule make_supervisions: calls latflow.align.supervision_store.make_supervisions."""

from typing import TYPE_CHECKING

from latflow.align.supervision_store import make_supervisions
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(make_supervisions, snakemake)
