"""Rule make_supervisions: calls latflow.align.supervision_store.make_supervisions."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.align.supervision_store.make_supervisions", snakemake)
