"""A lattice seen as a graph of words: one cost an arc, one start, one end.

What picks words from lattices (n-best lists, samples, minimum Bayes risk) needs neither
transition-ids nor two kinds of cost. A `WordGraph` has the arcs of a raw or compact
lattice with scaled costs, and one more arc without a word from each final state to an
added last state, so that a path is a chain of arcs from state 0 to the last state.

Public: `WordGraph`, `least_costs`, `log_sums`, `path_of`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import BestPath, Lattice


@dataclass(frozen=True, eq=False)
class WordGraph:
    """S states, the last being the end; A arcs, ascending by source.

    Attributes:
        arc_begin: int64[S + 1].
        source: int32[A].
        target: int32[A], higher than the source.
        word: int32[A], 0 for none.
        cost: float64[A], scaled; inf where an arc cannot be taken.
        arc: int64[A], number of the arc in the lattice; -1 for one to the end.
        frame: int32[S], frames before each state.
    """

    arc_begin: np.ndarray
    source: np.ndarray
    target: np.ndarray
    word: np.ndarray
    cost: np.ndarray
    arc: np.ndarray
    frame: np.ndarray

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.frame)

    @classmethod
    def of(
        cls,
        lattice: Lattice | CompactLattice,
        *,
        lm_scale: float = 1.0,
        acoustic_scale: float = 1.0,
        word_insertion_penalty: float = 0.0,
    ) -> WordGraph:
        """Take the words and the scaled costs of a lattice.

        Args:
            lattice: raw or compact.
            lm_scale: factor on graph costs.
            acoustic_scale: factor on acoustic costs.
            word_insertion_penalty: cost of each word.

        Raises:
            UserError: a cost is NaN or -inf, or no path leads to a final state.
        """
        num_states = len(lattice.final_graph_cost)
        final = _scaled(
            lattice.final_graph_cost,
            lattice.final_acoustic_cost,
            lm_scale,
            acoustic_scale,
        )
        cost = _scaled(
            lattice.graph_cost, lattice.acoustic_cost, lm_scale, acoustic_scale
        )
        if not ((cost > -np.inf).all() and (final > -np.inf).all()):
            raise UserError(
                "a lattice with a cost that is NaN or minus infinity",
                remedy="decode the utterance again",
            )
        cost[lattice.word != 0] += word_insertion_penalty
        ends = np.flatnonzero(np.isfinite(final)).astype(np.int32)
        states = np.arange(num_states, dtype=np.int32)
        source = np.concatenate([np.repeat(states, np.diff(lattice.arc_begin)), ends])
        order = np.argsort(source, kind="stable")
        to_end = np.full(len(ends), num_states, np.int32)
        nothing = np.zeros(len(ends), np.int32)
        arcs = np.arange(len(cost), dtype=np.int64)
        counts = np.bincount(source, minlength=num_states + 1)
        graph = cls(
            arc_begin=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            source=source[order],
            target=np.concatenate([lattice.next_state, to_end])[order],
            word=np.concatenate([lattice.word, nothing])[order],
            cost=np.concatenate([cost, final[ends]])[order],
            arc=np.concatenate([arcs, nothing - np.int64(1)])[order],
            frame=np.append(lattice.frame, lattice.num_frames).astype(np.int32),
        )
        if not num_states or not np.isfinite(graph.costs_to_end()[0]):
            raise UserError(
                "a lattice without a path to a final state",
                remedy="decode the utterance again",
            )
        return graph

    def costs_to_end(self) -> np.ndarray:
        """Least cost from each state to the end, float64[S]; inf if there is none."""
        return least_costs(self.source, self.target, self.cost, self.num_states)


def _scaled(
    graph: np.ndarray, acoustic: np.ndarray, lm_scale: float, acoustic_scale: float
) -> np.ndarray:
    """Scaled sums of costs, float64; inf stays inf at scale 0, NaN stays NaN."""
    total = np.full(len(graph), np.inf)
    is_in = ~(np.isposinf(graph) | np.isposinf(acoustic))
    total[is_in] = lm_scale * graph[is_in].astype(np.float64)
    total[is_in] += acoustic_scale * acoustic[is_in].astype(np.float64)
    return total


@njit(cache=True, nogil=True)
def least_costs(
    source: np.ndarray, target: np.ndarray, cost: np.ndarray, num_states: int
) -> np.ndarray:
    """Least cost from each state to the last one, float64[S].

    Args:
        source: int32[A], ascending.
        target: int32[A], higher than the source.
        cost: float64[A].
        num_states: S.
    """
    best = np.full(num_states, np.inf)
    best[num_states - 1] = 0.0
    for arc in range(len(source) - 1, -1, -1):
        through = cost[arc] + best[target[arc]]
        best[source[arc]] = min(best[source[arc]], through)
    return best


@njit(cache=True, nogil=True)
def log_sums(
    start: int, origin: np.ndarray, goal: np.ndarray, cost: np.ndarray, num_states: int
) -> np.ndarray:
    """Log-sum of exp(-cost) over the paths from a start to each state, float64[S].

    With the arrays of a graph turned round (arcs from last to first, `origin` their
    targets, `goal` their sources, `start` the end) these are the sums to the end.

    Args:
        start: a state.
        origin: int32[A]: all arcs into a state come before the first arc out of it.
        goal: int32[A].
        cost: float64[A].
        num_states: S.
    """
    # In two passes there is one exponential an arc: what is added up at a state is
    # relative to the best way to it, which the first pass finds.
    best = np.full(num_states, np.inf)
    best[start] = 0.0
    for arc in range(len(origin)):
        through = best[origin[arc]] + cost[arc]
        best[goal[arc]] = min(best[goal[arc]], through)
    total = np.zeros(num_states)  # sum of exp(best - cost) over the ways to a state
    total[start] = 1.0
    for arc in range(len(origin)):
        here, there = origin[arc], goal[arc]
        through = best[here] + cost[arc]
        if through < np.inf:
            total[there] += total[here] * np.exp(best[there] - through)
    result = np.full(num_states, -np.inf)
    for state in range(num_states):
        if total[state] > 0.0:
            result[state] = np.log(total[state]) - best[state]
    return result


def path_of(
    lattice: Lattice | CompactLattice, graph: WordGraph, arcs: np.ndarray
) -> BestPath:
    """Collect words, times, transition-ids and costs of a path.

    Args:
        lattice: what the graph was made of.
        graph: the graph.
        arcs: arcs of the graph from the start to the end, the last of them to the end.

    Returns:
        The path; its costs are those of the lattice, unscaled and without penalties.
    """
    taken, end = graph.arc[arcs[:-1]], graph.source[arcs[-1]]
    words = lattice.word[taken]
    begin = graph.frame[graph.source[arcs[:-1]]][words != 0]
    last = np.int32(lattice.num_frames)
    graph_cost = lattice.graph_cost[taken].sum(dtype=np.float64)
    acoustic_cost = lattice.acoustic_cost[taken].sum(dtype=np.float64)
    return BestPath(
        words=words[words != 0],
        word_begin=begin,
        word_end=np.append(begin[1:], last)[: len(begin)].astype(np.int32),
        transition_ids=_transition_ids(lattice, taken, int(end)),
        graph_cost=float(graph_cost + lattice.final_graph_cost[end]),
        acoustic_cost=float(acoustic_cost + lattice.final_acoustic_cost[end]),
    )


def _transition_ids(
    lattice: Lattice | CompactLattice, arcs: np.ndarray, end: int
) -> np.ndarray:
    """Transition-ids of a path that ends in a final state, int32[T]."""
    if isinstance(lattice, Lattice):
        ids = lattice.transition_id[arcs]
        return ids[ids != 0]
    begin, final = lattice.string_begin, lattice.final_string_begin
    parts = [lattice.string[begin[arc] : begin[arc + 1]] for arc in arcs]
    parts.append(lattice.final_string[final[end] : final[end + 1]])
    return np.concatenate(parts)
