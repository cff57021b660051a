"""Rule make_graph: calls latflow.lang.composition.make_graph."""

from pathlib import Path
from typing import TYPE_CHECKING

from latflow.lang.composition import make_graph
from latflow.logs import log_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log_to(snakemake.log[0])
make_graph(
    Path(snakemake.input["lexicon_fst"]).parent,
    snakemake.input["grammar"],
    Path(snakemake.input["model"]).parent,
    snakemake.output["graph"],
    transition_scale=snakemake.params["options"]["transition_scale"],
    self_loop_scale=snakemake.params["options"]["self_loop_scale"],
)
