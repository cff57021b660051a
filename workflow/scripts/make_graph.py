"""Rule make_graph: calls latflow.lang.composition.make_graph."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.jobs import job
from latflow.lang.composition import make_graph

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with job(snakemake):
    make_graph(
        Path(snakemake.input["lexicon_fst"]).parent,
        snakemake.input["grammar"],
        Path(snakemake.input["model"]).parent,
        snakemake.output["graph"],
        transition_scale=snakemake.params["options"]["transition_scale"],
        self_loop_scale=snakemake.params["options"]["self_loop_scale"],
    )
