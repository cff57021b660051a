"""The best path of a lattice, at one or at many pairs of scales.

The cost of a path is

    lm_scale * graph cost + acoustic_scale * acoustic cost
        + word_insertion_penalty * number of words,

and the best path has the least. `best_paths` finds the best ones for many settings in
one pass over the lattice, which is what tuning needs.

Source: Kaldi `latbin/lattice-scale.cc`, `lattice-add-penalty.cc`,
`lattice-best-path.cc`; Kaldi's LMWT is lm_scale 1 with acoustic_scale 1 / LMWT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from latflow.errors import UserError
from latflow.jit import njit
from latflow.lattice.lattice import CompactLattice, Lattice, Strings

_CELLS = 4_000_000  # entries of the table of one pass; more settings take more passes


class Scales(NamedTuple):
    """Factors of the costs of a path.

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
        """Return the scales of a language model weight in Kaldi's scoring."""
        return cls(1.0, 1.0 / lmwt, word_insertion_penalty)


@dataclass(frozen=True, eq=False)
class BestPath:
    """One path through a lattice; N words, T frames.

    A word begins at the frame where its label stands and ends where the next one
    begins; on determinized graphs labels move along the word, so that these times are
    rough. `latflow.align.word_times` finds exact ones from the phones of the path.

    Attributes:
        words: int32[N], word ids.
        word_begin: int32[N], first frame of each word.
        word_end: int32[N], one past the last frame of each word.
        transition_ids: int32[T].
        graph_cost: sum over the path, unscaled, without word insertion penalties.
        acoustic_cost: sum over the path, unscaled.
    """

    words: np.ndarray
    word_begin: np.ndarray
    word_end: np.ndarray
    transition_ids: np.ndarray
    graph_cost: float
    acoustic_cost: float


def best_path(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
    word_insertion_penalty: float = 0.0,
) -> BestPath:
    """Find the path of least cost; of equally good ones, the first in arc order.

    Args:
        lattice: raw or compact, with a final state.
        lm_scale: factor on the graph cost.
        acoustic_scale: factor on the acoustic cost.
        word_insertion_penalty: cost of each word.

    Raises:
        UserError: no path leads to a final state.
    """
    scales = Scales(lm_scale, acoustic_scale, word_insertion_penalty)
    return best_paths(lattice, [scales])[0]


def best_paths(
    lattice: Lattice | CompactLattice, scales: Sequence[Scales]
) -> list[BestPath]:
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
        for arcs, end in _best_arcs(lattice, table):
            key = arcs.tobytes() + end.to_bytes(8, "little")
            if key not in known:
                known[key] = path_along(lattice, arcs, end)
            paths.append(known[key])
    return paths


def path_along(
    lattice: Lattice | CompactLattice, arcs: np.ndarray, end: int
) -> BestPath:
    """Collect words, times, transition-ids and unscaled costs of a path.

    Args:
        lattice: raw or compact.
        arcs: int[L], the arcs of the path from the start.
        end: the final state where it ends.
    """
    labels = lattice.word[arcs]
    is_word = labels != 0
    source = np.searchsorted(lattice.arc_begin, arcs[is_word], "right") - 1
    begin = lattice.frame[source]
    word_end = np.empty_like(begin)
    word_end[:-1], word_end[-1:] = begin[1:], lattice.num_frames
    if isinstance(lattice, Lattice):
        ids = lattice.transition_id[arcs]
        ids = ids[ids != 0]
    else:
        strings = [lattice.arc_string(arc) for arc in arcs]
        ids = np.concatenate([*strings, lattice.state_string(end)])
    graph = lattice.graph_cost[arcs].sum(dtype=np.float64)
    acoustic = lattice.acoustic_cost[arcs].sum(dtype=np.float64)
    return BestPath(
        words=labels[is_word],
        word_begin=begin,
        word_end=word_end,
        transition_ids=ids,
        graph_cost=float(graph + lattice.final_graph_cost[end]),
        acoustic_cost=float(acoustic + lattice.final_acoustic_cost[end]),
    )


def _best_arcs(
    lattice: Lattice | CompactLattice, scales: np.ndarray
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the arcs and the last state of the best path of each row of scales."""
    source = lattice.source()
    cost, best_arc = _best_costs(
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
    """Return costs by setting, float64[A, K]; a cost of inf stays inf at scale 0."""
    is_out = ~(np.isfinite(graph) & np.isfinite(acoustic))
    columns = np.stack([graph, acoustic, word != 0], axis=1).astype(np.float64)
    columns[is_out] = 0.0
    costs = columns @ scales.T
    costs[is_out] = np.inf
    return costs


@njit(cache=True, nogil=True)
def _best_costs(
    source: np.ndarray, target: np.ndarray, arc_cost: np.ndarray, num_states: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best path to each state for each setting.

    Args:
        source: int32[A], ascending; states are in topological order.
        target: int32[A].
        arc_cost: float64[A, K].
        num_states: S.

    Returns:
        (float64[S, K], least cost; int32[S, K], the last arc of that path, or -1).
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
    """Return the arcs of the best path to a state, int32[L], in order."""
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


def linear_paths(
    paths: Sequence[BestPath], graph_costs: Iterable[float]
) -> CompactLattice:
    """Return the lattice of some paths that share nothing but its start and its end.

    A word has its own arc, up to the next word; the first arc of a path has the costs
    of the whole path.

    Args:
        paths: at least one, all over as many frames, at least one.
        graph_costs: of the paths, instead of their own.
    """
    arcs: list[tuple[int, int, int]] = []
    costs: list[tuple[float, float]] = []
    strings: list[list[int]] = []
    num_states = 2  # the start and the end
    for path, graph_cost in zip(paths, graph_costs, strict=True):
        ids, words = path.transition_ids.tolist(), path.words.tolist()
        begins = [*path.word_begin.tolist(), len(ids)]
        if begins[0] > 0:  # frames before the first word
            begins, words = [0, *begins], [0, *words]
        state = 0
        for place, word in enumerate(words):
            is_last = place == len(words) - 1
            target = 1 if is_last else num_states
            num_states += not is_last
            arcs.append((state, target, word))
            costs.append((graph_cost, path.acoustic_cost) if place == 0 else (0.0, 0.0))
            strings.append(ids[begins[place] : begins[place + 1]])
            state = target
    final_costs = np.full((num_states, 2), np.inf, np.float32)
    final_costs[1] = 0.0
    return CompactLattice.from_arcs(
        np.array(arcs, np.int32),
        np.array(costs, np.float32),
        Strings.of(strings),
        final_costs,
    )
