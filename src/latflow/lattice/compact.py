"""Compact lattices: an arc is a word and the transition-ids that belong to it.

A `CompactLattice` says what a `Lattice` says with far fewer states: its arcs carry a
word (0 for none), the two costs and a *string* of transition-ids, one for each frame
that the arc lasts; final states may carry a string too. Strings lie one behind the
other in one array. States are in topological order and state 0 is the start; the
acoustic cost is unscaled. Determinisation makes such lattices; Kaldi's programs hand
them on.

Public: `CompactLattice`, `Strings`.

Source: Kaldi `fstext/lattice-weight.h` (`CompactLatticeWeight`),
`fstext/lattice-utils-inl.h` (`ConvertLattice`), `fstext/factor-inl.h` (`Factor`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from latflow.errors import UserError
from latflow.lattice.chains import collapse_chains, spread_strings
from latflow.lattice.lattice import Lattice
from latflow.lattice.order import (
    arc_offsets,
    state_frames,
    states_with_end,
    topological_order,
)


class Strings(NamedTuple):
    """N strings of transition-ids, one behind the other.

    Attributes:
        begin: int64[N + 1]; string n is ids[begin[n]:begin[n + 1]].
        ids: int32[begin[N]].
    """

    begin: np.ndarray
    ids: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Transition-ids of each string, int64[N]."""
        return np.diff(self.begin)

    def take(self, order: np.ndarray) -> Strings:
        """The strings of these numbers, in this order."""
        lengths = self.lengths[order]
        begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        shift = np.repeat(self.begin[:-1][order] - begin[:-1], lengths)
        return Strings(begin, self.ids[shift + np.arange(begin[-1])])

    @classmethod
    def empty(cls, count: int) -> Strings:
        """As many strings of no transition-id."""
        return cls(np.zeros(count + 1, np.int64), np.empty(0, np.int32))


@dataclass(frozen=True, eq=False)
class CompactLattice:
    """The compact lattice of one utterance; S states, A arcs.

    Arcs of state s are arc_begin[s] ... arc_begin[s + 1] - 1 and lead to higher states.

    Attributes:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        word: int32[A], word id; 0 for none.
        graph_cost: float32[A].
        acoustic_cost: float32[A], unscaled.
        string_begin: int64[A + 1].
        string: int32[string_begin[A]], transition-ids; those of arc a are
            string[string_begin[a]:string_begin[a + 1]].
        final_graph_cost: float32[S]; inf where the state is not final.
        final_acoustic_cost: float32[S]; inf where the state is not final.
        final_string_begin: int64[S + 1].
        final_string: int32[final_string_begin[S]], likewise; none where not final.
        frame: int32[S], frames consumed on the way from the start.
        num_frames: frames of the utterance.
    """

    arc_begin: np.ndarray
    next_state: np.ndarray
    word: np.ndarray
    graph_cost: np.ndarray
    acoustic_cost: np.ndarray
    string_begin: np.ndarray
    string: np.ndarray
    final_graph_cost: np.ndarray
    final_acoustic_cost: np.ndarray
    final_string_begin: np.ndarray
    final_string: np.ndarray
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
        """Mean number of transition-ids over a frame (Kaldi's `lattice-depth`)."""
        total = len(self.string) + len(self.final_string)
        return total / max(self.num_frames, 1)

    @property
    def is_final(self) -> np.ndarray:
        """Whether each state is final, bool[S]."""
        return np.isfinite(self.final_graph_cost) & np.isfinite(
            self.final_acoustic_cost
        )

    def source(self) -> np.ndarray:
        """The state that each arc leaves, int32[A]."""
        states = np.arange(self.num_states, dtype=np.int32)
        return np.repeat(states, np.diff(self.arc_begin))

    def arc_string(self, arc: int) -> np.ndarray:
        """Transition-ids of an arc, int32[its frames]."""
        return self.string[self.string_begin[arc] : self.string_begin[arc + 1]]

    def state_string(self, state: int) -> np.ndarray:
        """Transition-ids behind a final state, int32[its frames]."""
        begin = self.final_string_begin
        return self.final_string[begin[state] : begin[state + 1]]

    @classmethod
    def from_arcs(
        cls,
        arcs: np.ndarray,
        costs: np.ndarray,
        strings: Strings,
        final_costs: np.ndarray,
        final_strings: Strings | None = None,
        *,
        start: int = 0,
    ) -> CompactLattice:
        """Make a compact lattice from arcs in any order.

        States that cannot be reached are dropped. States keep their numbers if these
        are a topological order with the start first, and are renumbered otherwise.

        Args:
            arcs: int32[A, 3]: source, target, word.
            costs: float32[A, 2]: graph and acoustic cost.
            strings: of the arcs.
            final_costs: float32[S, 2], likewise; inf where a state is not final.
            final_strings: of the states; None for empty ones.
            start: the start state.

        Raises:
            UserError: the arcs form a cycle, or two paths to a state (or to two ends)
                differ in their number of frames.
        """
        num_states = len(final_costs)
        if final_strings is None:
            final_strings = Strings.empty(num_states)
        by_source = np.argsort(arcs[:, 0], kind="stable")
        begin = arc_offsets(arcs[:, 0], num_states)
        target = np.ascontiguousarray(arcs[by_source, 1], np.int32)
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
            kept = np.flatnonzero(arcs[:, 0] >= 0)
            return cls.from_arcs(
                arcs[kept],
                costs[kept],
                strings.take(kept),
                final_costs[order],
                final_strings.take(order),
            )
        if not np.array_equal(by_source, np.arange(len(arcs))):
            strings = strings.take(by_source)
        return cls._from_sorted(
            (begin, target, arcs[by_source, 2]),
            costs[by_source],
            strings,
            final_costs,
            final_strings,
        )

    @classmethod
    def _from_sorted(
        cls,
        arcs: tuple[np.ndarray, np.ndarray, np.ndarray],
        costs: np.ndarray,
        strings: Strings,
        final_costs: np.ndarray,
        final_strings: Strings,
    ) -> CompactLattice:
        """Make a compact lattice from arcs in order; see `from_arcs`.

        Args:
            arcs: offsets by state, targets, words.
            costs: as for `from_arcs`, and so on.
            strings: of the arcs.
            final_costs: of the states.
            final_strings: of the states.
        """
        begin, target, word = arcs
        frame, is_consistent = state_frames(
            begin, target, strings.lengths.astype(np.int32)
        )
        is_final = np.isfinite(final_costs).all(axis=1)
        ends = np.unique((frame + final_strings.lengths)[is_final])
        if not is_consistent or len(ends) > 1:
            raise UserError(
                "a lattice with paths of different numbers of frames",
                remedy="only lattices of whole utterances, frame by frame, are read",
            )
        arc_costs = np.ascontiguousarray(costs.T, np.float32)
        finals = np.ascontiguousarray(final_costs.T, np.float32)
        return cls(
            arc_begin=begin,
            next_state=target,
            word=np.ascontiguousarray(word, np.int32),
            graph_cost=arc_costs[0],
            acoustic_cost=arc_costs[1],
            string_begin=strings.begin,
            string=strings.ids,
            final_graph_cost=finals[0],
            final_acoustic_cost=finals[1],
            final_string_begin=final_strings.begin,
            final_string=final_strings.ids,
            frame=frame,
            num_frames=int(ends[0]) if len(ends) else int(frame.max(initial=0)),
        )

    def without_dead_ends(self) -> CompactLattice:
        """The same lattice without the states from which no final state is reached."""
        is_kept = states_with_end(self.arc_begin, self.next_state, self.is_final)
        if is_kept.all():
            return self
        source = self.source()
        kept = np.flatnonzero(is_kept[source] & is_kept[self.next_state])
        arcs = np.stack([source, self.next_state, self.word], axis=1)
        finals = np.stack([self.final_graph_cost, self.final_acoustic_cost], axis=1)
        return CompactLattice.from_arcs(
            arcs[kept],
            np.stack([self.graph_cost, self.acoustic_cost], axis=1)[kept],
            Strings(self.string_begin, self.string).take(kept),
            finals,
            Strings(self.final_string_begin, self.final_string),
        )

    def to_lattice(self) -> Lattice:
        """Give each transition-id an arc of its own.

        The first arc of a string carries the word and the costs. A final state with a
        string ends in a row of arcs to a new final state. New states stand right behind
        the state that the row leaves, so that the order stays a topological one (Kaldi
        numbers them behind all others).

        Source: Kaldi `fstext/lattice-utils-inl.h` (`ConvertLatticeFromCompact`).
        """
        columns, costs, final_costs, frame, begin = spread_strings(
            (self.arc_begin, self.next_state, self.word),
            np.stack([self.graph_cost, self.acoustic_cost]),
            (self.string_begin, self.string),
            np.stack([self.final_graph_cost, self.final_acoustic_cost]),
            (self.final_string_begin, self.final_string),
            self.frame,
        )
        return Lattice(
            arc_begin=begin,
            next_state=columns[0],
            transition_id=columns[1],
            word=columns[2],
            graph_cost=costs[0],
            acoustic_cost=costs[1],
            final_graph_cost=final_costs[0],
            final_acoustic_cost=final_costs[1],
            frame=frame,
            num_frames=self.num_frames,
        )

    @classmethod
    def from_lattice(cls, lattice: Lattice) -> CompactLattice:
        """Make one arc of each chain of arcs that carries at most one word, in front.

        A state in the middle of a chain has one arc in and one without a word out, and
        is not final. The costs of a chain are added up in float32. No path is lost or
        merged: this is no determinisation. States are numbered as Kaldi numbers them.

        Source: Kaldi `fstext/lattice-utils-inl.h` (`ConvertLattice`),
        `fstext/factor-inl.h` (`Factor`).
        """
        order, begin, columns, costs, strings = collapse_chains(
            lattice.arc_begin,
            lattice.next_state,
            lattice.transition_id,
            lattice.word,
            np.stack([lattice.graph_cost, lattice.acoustic_cost]),
            np.isfinite(lattice.final_graph_cost + lattice.final_acoustic_cost),
        )
        final_strings = Strings.empty(len(order))
        return cls(
            arc_begin=begin,
            next_state=columns[0],
            word=columns[1],
            graph_cost=costs[0],
            acoustic_cost=costs[1],
            string_begin=strings[0],
            string=strings[1],
            final_graph_cost=lattice.final_graph_cost[order],
            final_acoustic_cost=lattice.final_acoustic_cost[order],
            final_string_begin=final_strings.begin,
            final_string=final_strings.ids,
            frame=lattice.frame[order],
            num_frames=lattice.num_frames,
        )
