"""Rule make_report: calls latflow.report.build.make_report."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.report.build import make_report

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    make_report(
        Path(snakemake.output["html"]).parent,
        snakemake.output["html"],
        config=snakemake.params["config"],
    )
