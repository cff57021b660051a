"""Rule make_report: calls latflow.report.build.make_report."""

from typing import TYPE_CHECKING

from latflow.workflow.fork_server import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run("latflow.report.build.make_report", snakemake)
