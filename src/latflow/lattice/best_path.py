"""The best path of a lattice, at one or at many pairs of scales.

The cost of a path is

    lm_scale * graph cost + acoustic_scale * acoustic cost
        + word_insertion_penalty * number of words,

and the best path has the least. `best_paths` finds the best ones for many settings in
one sweep over the lattice, which is what tuning needs.

Public: `Scales`, `best_path`, `best_paths`.

Source: Kaldi `latbin/lattice-scale.cc`, `lattice-add-penalty.cc`,
`lattice-best-path.cc`; Kaldi's LMWT is lm_scale 1 with acoustic_scale 1 / LMWT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.lattice.lattice import BestPath, Lattice

_CELLS = 4_000_000  # entries of the table of one sweep; more settings take more sweeps


class Scales(NamedTuple):
    """How the costs of a path are added up.

    Attributes:
        lm_scale: factor on the graph cost.
        acoustic_scale: factor on the acoustic cost.
        word_insertion_penalty: cost of each word; higher means fewer words.
    """

    lm_scale: float = 1.0
    acoustic_scale: float = 1.0
    word_insertion_penalty: float = 0.0

    @classmethod
    def from_lmwt(cls, lmwt: float, word_insertion_penalty: float = 0.0) -> Scales:
        """The scales of a language model weight, as Kaldi's scoring sets them."""
        return cls(1.0, 1.0 / lmwt, word_insertion_penalty)


def best_path(
    lattice: Lattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
    word_insertion_penalty: float = 0.0,
) -> BestPath:
    """Find the path of least cost; of equally good ones, the first in arc order.

    Args:
        lattice: a lattice with a final state.
        lm_scale: factor on the graph cost.
        acoustic_scale: factor on the acoustic cost.
        word_insertion_penalty: cost of each word.

    Raises:
        UserError: no path leads to a final state.
    """
    scales = Scales(lm_scale, acoustic_scale, word_insertion_penalty)
    return best_paths(lattice, [scales])[0]


def best_paths(lattice: Lattice, scales: Sequence[Scales]) -> list[BestPath]:
    """Find the best path for each of several settings, in their order.

    Equal paths of different settings are one object, so that what is derived from a
    path can be kept by `id`.

    Raises:
        UserError: no path leads to a final state.
    """
    block = max(1, _CELLS // max(lattice.num_states, 1))
    paths: list[BestPath] = []
    known: dict[bytes, BestPath] = {}
    for first in range(0, len(scales), block):
        table = np.array(scales[first : first + block], np.float64).reshape(-1, 3)
        for arcs, end in _traced(lattice, table):
            key = arcs.tobytes() + end.to_bytes(8, "little")
            if key not in known:
                known[key] = _as_path(lattice, arcs, end)
            paths.append(known[key])
    return paths


def _traced(lattice: Lattice, scales: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the arcs and the last state of the best path of each row of scales."""
    source = lattice.source()
    cost, best_arc = _sweep(
        source,
        lattice.next_state,
        _weighted(scales, lattice.graph_cost, lattice.acoustic_cost, lattice.word),
        lattice.num_states,
    )
    no_words = np.zeros(lattice.num_states, np.int32)
    total = cost + _weighted(
        scales, lattice.final_graph_cost, lattice.final_acoustic_cost, no_words
    )
    for k in range(len(scales)):
        end = int(np.argmin(total[:, k])) if len(total) else 0
        if not len(total) or not np.isfinite(total[end, k]):
            raise UserError(
                "a lattice without a path to a final state",
                remedy="decode the utterance again",
            )
        yield _trace(source, np.ascontiguousarray(best_arc[:, k]), end), end


def _weighted(
    scales: np.ndarray, graph: np.ndarray, acoustic: np.ndarray, word: np.ndarray
) -> np.ndarray:
    """Costs under each setting, float64[A, K]; a cost of inf stays inf at scale 0."""
    is_out = ~(np.isfinite(graph) & np.isfinite(acoustic))
    columns = np.stack([graph, acoustic, word != 0], axis=1).astype(np.float64)
    columns[is_out] = 0.0
    costs = columns @ scales.T
    costs[is_out] = np.inf
    return costs


@njit(cache=True, nogil=True)
def _sweep(
    source: np.ndarray, target: np.ndarray, arc_cost: np.ndarray, num_states: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cheapest way to each state under each setting.

    Args:
        source: int32[A], ascending; states are in topological order.
        target: int32[A].
        arc_cost: float64[A, K].
        num_states: S.

    Returns:
        (float64[S, K], least cost; int32[S, K], the last arc of that way, or -1).
    """
    num_settings = arc_cost.shape[1]
    cost = np.full((num_states, num_settings), np.inf)
    best_arc = np.full((num_states, num_settings), -1, np.int32)
    if num_states:
        cost[0] = 0.0
    for arc in range(len(source)):
        here, there = source[arc], target[arc]
        for k in range(num_settings):
            candidate = cost[here, k] + arc_cost[arc, k]
            if candidate < cost[there, k]:
                cost[there, k] = candidate
                best_arc[there, k] = arc
    return cost, best_arc


@njit(cache=True, nogil=True)
def _trace(source: np.ndarray, best_arc: np.ndarray, end: int) -> np.ndarray:
    """Arcs of the best way to a state, int32[L], in order."""
    length = 0
    state = end
    while best_arc[state] >= 0:
        state = source[best_arc[state]]
        length += 1
    arcs = np.empty(length, np.int32)
    state = end
    for k in range(length - 1, -1, -1):
        arcs[k] = best_arc[state]
        state = source[arcs[k]]
    return arcs


def _as_path(lattice: Lattice, arcs: np.ndarray, end: int) -> BestPath:
    """Collect labels, times and costs of a path."""
    ids = lattice.transition_id[arcs]
    labels = lattice.word[arcs]
    at = np.concatenate([[0], np.cumsum(ids != 0)])[:-1].astype(np.int32)
    begin = at[labels != 0]
    last = np.int32(np.count_nonzero(ids))
    graph = lattice.graph_cost[arcs].sum(dtype=np.float64)
    acoustic = lattice.acoustic_cost[arcs].sum(dtype=np.float64)
    return BestPath(
        words=labels[labels != 0],
        word_begin=begin,
        word_end=np.append(begin[1:], last)[: len(begin)].astype(np.int32),
        transition_ids=ids[ids != 0],
        graph_cost=float(graph + lattice.final_graph_cost[end]),
        acoustic_cost=float(acoustic + lattice.final_acoustic_cost[end]),
    )
