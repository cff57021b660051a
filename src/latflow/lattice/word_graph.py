"""A lattice as a graph of words: one cost an arc, one start, one end.

N-best lists, oracles and minimum Bayes risk need neither transition-ids nor two kinds
of cost. A `WordGraph` has the arcs of a raw or compact
lattice with scaled costs, and one more arc without a word from each final state to an
added last state, so that a path is a sequence of arcs from state 0 to the last state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from latflow.lattice.best_path import BestPath, path_along
from latflow.lattice.kernels import arc_offsets
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.path_sums import ScaledArcs, best_costs, scaled_arcs


@dataclass(frozen=True, eq=False)
class WordGraph:
    """S states, the last being the end; A arcs, ascending by source.

    Attributes:
        lattice: what it was made of.
        arc_begin: int64[S + 1].
        source: int32[A].
        target: int32[A], higher than the source.
        word: int32[A], 0 for none.
        cost: float64[A], scaled; inf where an arc cannot be taken.
        arc: int64[A], number of the arc in the lattice; -1 for one to the end.
        frame: int32[S], frames before each state.
    """

    lattice: Lattice | CompactLattice
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

    @cached_property
    def arcs(self) -> ScaledArcs:
        """The arcs for `latflow.lattice.path_sums`; the last state is the final one."""
        final_cost = np.full(self.num_states, np.inf)
        final_cost[-1] = 0.0
        return ScaledArcs(self.arc_begin, self.target, self.cost, final_cost)

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
        arcs = scaled_arcs(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
        best_costs(arcs)  # refuses a lattice without a path
        num_states, num_arcs = lattice.num_states, lattice.num_arcs
        arcs.cost[lattice.word != 0] += word_insertion_penalty
        ends = np.flatnonzero(np.isfinite(arcs.final_cost)).astype(np.int32)
        source = np.concatenate([lattice.source(), ends])
        order = np.argsort(source, kind="stable")
        target = np.concatenate([lattice.next_state, np.full_like(ends, num_states)])
        number = np.concatenate([np.arange(num_arcs), np.full(len(ends), -1)])
        return cls(
            lattice=lattice,
            arc_begin=arc_offsets(source, num_states + 1),
            source=source[order],
            target=target[order],
            word=np.concatenate([lattice.word, np.zeros_like(ends)])[order],
            cost=np.concatenate([arcs.cost, arcs.final_cost[ends]])[order],
            arc=number[order],
            frame=np.append(lattice.frame, np.int32(lattice.num_frames)),
        )

    def path(self, arcs: np.ndarray) -> BestPath:
        """Return the path of these arcs, the last of which leads to the end."""
        return path_along(self.lattice, self.arc[arcs[:-1]], int(self.source[arcs[-1]]))
