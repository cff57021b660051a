"""Lattices and best paths as flat arrays.

A `Lattice` here is the raw, state-level lattice of one utterance: each state stands for
one token of the search at one frame, each arc either consumes a frame (it carries a
transition-id) or none (transition-id 0, an epsilon arc of the graph). States are in
topological order and state 0 is the start. Costs are negated natural logarithms; the
graph cost (language model, lexicon, transitions) and the acoustic cost are kept apart,
and the acoustic cost is *unscaled*, as in the lattices that Kaldi writes.

Public: `Lattice`, `BestPath`.

Source: Kaldi `fstext/lattice-weight.h`, `lat/kaldi-lattice.h`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.lattice.order import arc_offsets, state_frames, topological_order


@dataclass(frozen=True, eq=False)
class Lattice:
    """The raw lattice of one utterance; S states, A arcs.

    Arcs of state s are arc_begin[s] ... arc_begin[s + 1] - 1 and lead to higher states.

    Attributes:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        transition_id: int32[A]; 0 where the arc consumes no frame.
        word: int32[A], word id; 0 for none.
        graph_cost: float32[A].
        acoustic_cost: float32[A], unscaled.
        final_graph_cost: float32[S]; inf where the state is not final.
        final_acoustic_cost: float32[S]; inf where the state is not final.
        frame: int32[S], frames consumed on the way from the start.
        num_frames: frames of the utterance.
    """

    arc_begin: np.ndarray
    next_state: np.ndarray
    transition_id: np.ndarray
    word: np.ndarray
    graph_cost: np.ndarray
    acoustic_cost: np.ndarray
    final_graph_cost: np.ndarray
    final_acoustic_cost: np.ndarray
    frame: np.ndarray
    num_frames: int

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.final_graph_cost)

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.next_state)

    @property
    def depth(self) -> float:
        """Mean number of arcs over a frame (Kaldi's `lattice-depth`)."""
        return float(np.count_nonzero(self.transition_id) / max(self.num_frames, 1))

    def source(self) -> np.ndarray:
        """The state that each arc leaves, int32[A]."""
        states = np.arange(self.num_states, dtype=np.int32)
        return np.repeat(states, np.diff(self.arc_begin))

    @classmethod
    def from_arcs(
        cls,
        arcs: np.ndarray,
        costs: np.ndarray,
        final_costs: np.ndarray,
        *,
        start: int = 0,
    ) -> Lattice:
        """Make a lattice from arcs in any order.

        States that cannot be reached are dropped. States keep their numbers if these
        are a topological order with the start first, and are renumbered otherwise.

        Args:
            arcs: int32[A, 4]: source, target, transition-id, word.
            costs: float32[A, 2]: graph and acoustic cost.
            final_costs: float32[S, 2], likewise; inf where a state is not final.
            start: the start state.

        Raises:
            UserError: the arcs form a cycle, or two paths to a state (or to two final
                states) differ in their number of frames.
        """
        num_states = len(final_costs)
        by_source = np.argsort(arcs[:, 0], kind="stable")
        begin = arc_offsets(arcs[:, 0], num_states)
        target = np.ascontiguousarray(arcs[by_source, 1])
        order = topological_order(begin, target, start)
        if len(order) == 0 and num_states:
            raise UserError(
                "a lattice with a cycle", remedy="write it from an acyclic lattice"
            )
        if not np.array_equal(order, np.arange(num_states)):
            position = np.full(num_states, -1, np.int32)
            position[order] = np.arange(len(order))
            arcs = arcs.copy()
            arcs[:, :2] = position[arcs[:, :2]]
            kept = arcs[:, 0] >= 0
            return cls.from_arcs(arcs[kept], costs[kept], final_costs[order])
        arcs, costs = arcs[by_source], costs[by_source]
        consumed = (arcs[:, 2] != 0).astype(np.int32)
        frame, is_consistent = state_frames(begin, target, consumed)
        ends = np.unique(frame[np.isfinite(final_costs).all(axis=1)])
        if not is_consistent or len(ends) > 1:
            raise UserError(
                "a lattice with paths of different numbers of frames",
                remedy="only lattices of whole utterances, frame by frame, are read",
            )
        columns = np.ascontiguousarray(arcs[:, 1:].T, np.int32)
        arc_costs = np.ascontiguousarray(costs.T, np.float32)
        finals = np.ascontiguousarray(final_costs.T, np.float32)
        num_frames = int(ends[0]) if len(ends) else int(frame.max(initial=0))
        return cls(
            arc_begin=begin,
            next_state=columns[0],
            transition_id=columns[1],
            word=columns[2],
            graph_cost=arc_costs[0],
            acoustic_cost=arc_costs[1],
            final_graph_cost=finals[0],
            final_acoustic_cost=finals[1],
            frame=frame,
            num_frames=num_frames,
        )


@dataclass(frozen=True, eq=False)
class BestPath:
    """One path through a lattice; N words, T frames.

    A word begins at the frame where its label stands and ends where the next one
    begins; on determinised graphs labels move along the word, so that these times are
    rough. `latflow.scoring.word_times` finds exact ones from the phones of the path.

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
