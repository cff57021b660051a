"""Rule make_report: calls latflow.report.build.make_report."""

from typing import TYPE_CHECKING

from latflow.report.build import make_report

from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
make_report(
    snakemake.params["results"],
    snakemake.output["html"],
    config=snakemake.params["config"],
)
