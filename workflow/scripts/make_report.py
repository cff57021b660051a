"""Rule make_report: calls latflow.report.build.make_report."""

from typing import TYPE_CHECKING

from latflow.report.build import make_report
from latflow.workflow.jobs import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

run(make_report, snakemake)
