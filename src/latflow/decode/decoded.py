"""What a search gives: the lattice of an utterance, and how it came about.

Public: `Decoded`, `DeadEndError`, `make_lattice`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latflow.decode.collect import Collected
from latflow.decode.search_graph import ArcArrays, SearchGraph
from latflow.decode.tokens import Store
from latflow.errors import UserError
from latflow.lattice.lattice import Lattice


class DeadEndError(UserError):
    """The search came to a frame where no token survived."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a search found.

    Attributes:
        lattice: with unscaled acoustic costs.
        reached_final: whether some path ends in a final state of the graph. If not, all
            states of the last frame are final at no cost: a partial result.
        mean_active: tokens followed per frame.
    """

    lattice: Lattice
    reached_final: bool
    mean_active: float


def make_lattice(
    graph: ArcArrays,
    packed: SearchGraph,
    store: Store,
    collected: Collected,
    final_cost: np.ndarray,
) -> Lattice:
    """Look the labels and costs of states and arcs up.

    Args:
        graph: the graph that was searched.
        packed: the same, packed.
        store: what the search has left.
        collected: its states and arcs in order.
        final_cost: float32[graph states], inf where an utterance may not end.
    """
    frame, graph_state, arc_begin, next_state, link = collected
    links = store.link[link]
    arcs = packed.origin[links["arc"]]
    num_frames = int(frame[-1])
    final = np.where(frame == num_frames, final_cost[graph_state], np.inf)
    final_acoustic = np.where(np.isfinite(final), 0.0, np.inf)
    return Lattice(
        arc_begin=arc_begin,
        next_state=next_state,
        transition_id=np.asarray(graph.ilabel[arcs], np.int32),
        word=np.asarray(graph.olabel[arcs], np.int32),
        graph_cost=np.asarray(graph.weight[arcs], np.float32),
        acoustic_cost=np.ascontiguousarray(links["acoustic"]),
        final_graph_cost=final.astype(np.float32),
        final_acoustic_cost=final_acoustic.astype(np.float32),
        frame=frame,
        num_frames=num_frames,
    )
