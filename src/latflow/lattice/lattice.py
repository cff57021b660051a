"""Lattices as flat arrays.

A `Lattice` is the raw, state-level lattice of one utterance: each state stands for one
token of the search at one frame, each arc either consumes a frame (it carries a
transition-id) or none (transition-id 0, an epsilon arc of the graph).

A `CompactLattice` holds the same with far fewer states: its arcs carry a word and a
*string* of transition-ids, one for each frame that the arc lasts; final states may
carry a string too. Determinization makes such lattices; Kaldi's programs exchange them.

In both, states are in topological order and state 0 is the start. Costs are negated
natural logarithms; the graph cost (language model, lexicon, transitions) and the
acoustic cost are kept apart, and the acoustic cost is *unscaled*, as in the lattices
that Kaldi writes.

Paths: `latflow.lattice.best_path`.

Source: Kaldi `fstext/lattice-weight.h`, `lat/kaldi-lattice.h`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from latflow.errors import UserError
from latflow.lattice.kernels import (
    arc_offsets,
    collapse_linear_paths,
    connect,
    expand_strings,
    state_frames,
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

    def take(self, rows: np.ndarray) -> Strings:
        """Return the strings of these numbers, in this order; -1 for an empty one."""
        lengths = np.where(rows < 0, 0, self.lengths[rows]) if len(rows) else rows
        begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        shift = np.repeat(self.begin[:-1][rows] - begin[:-1], lengths)
        return Strings(begin, self.ids[shift + np.arange(begin[-1])])

    @classmethod
    def empty(cls, count: int) -> Strings:
        """Return as many strings of no transition-id."""
        return cls(np.zeros(count + 1, np.int64), np.empty(0, np.int32))

    @classmethod
    def of(cls, rows: list[list[int]]) -> Strings:
        """Return the strings of these lists."""
        begin = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        return cls(begin, np.array([i for row in rows for i in row], np.int32))


@dataclass(frozen=True, eq=False, kw_only=True)
class _WordLattice(ABC):
    """Fields of both kinds; S states, A arcs.

    Attributes:
        arc_begin: int64[S + 1]; arcs of state s are arc_begin[s] ...
            arc_begin[s + 1] - 1 and lead to higher states.
        next_state: int32[A].
        word: int32[A], word id; 0 for none.
        graph_cost: float32[A].
        acoustic_cost: float32[A], unscaled.
        final_graph_cost: float32[S]; inf where the state is not final.
        final_acoustic_cost: float32[S]; inf where the state is not final.
        frame: int32[S], frames consumed from the start to each state.
        num_frames: frames of the utterance.
    """

    arc_begin: np.ndarray
    next_state: np.ndarray
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
    def is_final(self) -> np.ndarray:
        """True for final states, bool[S]."""
        graph, acoustic = self.final_graph_cost, self.final_acoustic_cost
        return np.isfinite(graph) & np.isfinite(acoustic)

    def source(self) -> np.ndarray:
        """Return the state that each arc leaves, int32[A]."""
        states = np.arange(self.num_states, dtype=np.int32)
        return np.repeat(states, np.diff(self.arc_begin))

    def connected(
        self, is_kept: np.ndarray | None = None, is_end: np.ndarray | None = None
    ) -> Self:
        """Return the lattice of the arcs on whole paths (OpenFst's `Connect`).

        Args:
            is_kept: bool[A], arcs that may be on a path; None for all.
            is_end: bool[S], final states that may end one; None for all.
        """
        return self.connected_part(is_kept, is_end)[0]

    def connected_part(
        self, is_kept: np.ndarray | None = None, is_end: np.ndarray | None = None
    ) -> tuple[Self, np.ndarray, np.ndarray]:
        """Return the same, and the numbers here of its states and of its arcs."""
        kept = np.ones(self.num_arcs, np.bool_) if is_kept is None else is_kept.copy()
        end = self.is_final if is_end is None else is_end & self.is_final
        is_needed = connect(self.arc_begin, self.next_state, kept, end)
        states, arcs = np.flatnonzero(is_needed), np.flatnonzero(kept)
        if is_needed.all() and kept.all() and np.array_equal(end, self.is_final):
            return self, states, arcs
        number = (np.cumsum(is_needed) - 1).astype(np.int32)
        begin = arc_offsets(number[self.source()[arcs]], len(states))
        part = self.selected(
            states, arcs, begin, number[self.next_state[arcs]], end[states]
        )
        return part, states, arcs

    def selected(
        self,
        states: np.ndarray,
        arcs: np.ndarray,
        arc_begin: np.ndarray,
        next_state: np.ndarray,
        is_final: np.ndarray,
    ) -> Self:
        """Return the lattice of these states and arcs, which may come repeatedly.

        Args:
            states: int[R], their numbers here.
            arcs: int[B], their numbers here.
            arc_begin: int64[R + 1], of the result.
            next_state: int32[B], of the result.
            is_final: bool[R]; other states lose final costs and strings.
        """
        finals = self.final_graph_cost[states], self.final_acoustic_cost[states]
        inf = np.float32(np.inf)
        return type(self)(
            arc_begin=arc_begin,
            next_state=next_state,
            word=self.word[arcs],
            graph_cost=self.graph_cost[arcs],
            acoustic_cost=self.acoustic_cost[arcs],
            final_graph_cost=np.where(is_final, finals[0], inf),
            final_acoustic_cost=np.where(is_final, finals[1], inf),
            frame=self.frame[states],
            num_frames=self.num_frames,
            **self._ids_of(arcs, np.where(is_final, states, -1)),
        )

    @abstractmethod
    def _ids_of(self, arcs: np.ndarray, states: np.ndarray) -> dict[str, np.ndarray]:
        """Return the transition-ids of arcs and of final states (-1 for others)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Lattice(_WordLattice):
    """The raw lattice of one utterance; S states, A arcs.

    Attributes:
        transition_id: int32[A]; 0 where the arc consumes no frame.
        arc_begin, ...: see `_WordLattice`.
    """

    transition_id: np.ndarray

    @property
    def depth(self) -> float:
        """Mean number of arcs over a frame (Kaldi's `lattice-depth`)."""
        return float(np.count_nonzero(self.transition_id) / max(self.num_frames, 1))

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
        rows, states, begin, target = _sorted(arcs, len(final_costs), start)
        ids = np.ascontiguousarray(arcs[rows, 2], np.int32)
        finals = final_costs[states]
        lengths = (ids != 0).astype(np.int32)
        return cls(
            **_columns(begin, target, arcs[rows, 3], costs[rows], finals),
            **_frames(begin, target, lengths, np.where(_is_final(finals), 0, -1)),
            transition_id=ids,
        )

    def to_lattice(self) -> Lattice:
        """Return the lattice itself."""
        return self

    def to_compact(self) -> CompactLattice:
        """Make one arc of each linear path that carries at most one word, in front.

        A state inside such a path has one arc in and one without a word out, and is not
        final. The costs of a path are added up in float32. No path is lost or merged:
        this is not a determinization. States are numbered as Kaldi numbers them.

        Source: Kaldi `fstext/lattice-utils-inl.h` (`ConvertLattice`),
        `fstext/factor-inl.h` (`Factor`).
        """
        order, begin, columns, costs, strings = collapse_linear_paths(
            self.arc_begin,
            self.next_state,
            self.transition_id,
            self.word,
            np.stack([self.graph_cost, self.acoustic_cost]),
            self.is_final,
        )
        final_strings = Strings.empty(len(order))
        return CompactLattice(
            arc_begin=begin,
            next_state=columns[0],
            word=columns[1],
            graph_cost=costs[0],
            acoustic_cost=costs[1],
            string_begin=strings[0],
            string=strings[1],
            final_graph_cost=self.final_graph_cost[order],
            final_acoustic_cost=self.final_acoustic_cost[order],
            final_string_begin=final_strings.begin,
            final_string=final_strings.ids,
            frame=self.frame[order],
            num_frames=self.num_frames,
        )

    def _ids_of(self, arcs: np.ndarray, states: np.ndarray) -> dict[str, np.ndarray]:
        del states
        return {"transition_id": self.transition_id[arcs]}


@dataclass(frozen=True, eq=False, kw_only=True)
class CompactLattice(_WordLattice):
    """The compact lattice of one utterance; S states, A arcs.

    Attributes:
        string_begin: int64[A + 1].
        string: int32[string_begin[A]], transition-ids; those of arc a are
            string[string_begin[a]:string_begin[a + 1]].
        final_string_begin: int64[S + 1].
        final_string: int32[final_string_begin[S]], likewise; none where not final.
        arc_begin, ...: see `_WordLattice`.
    """

    string_begin: np.ndarray
    string: np.ndarray
    final_string_begin: np.ndarray
    final_string: np.ndarray

    @property
    def depth(self) -> float:
        """Mean number of transition-ids over a frame (Kaldi's `lattice-depth`)."""
        total = len(self.string) + len(self.final_string)
        return total / max(self.num_frames, 1)

    @property
    def strings(self) -> Strings:
        """The strings of all arcs."""
        return Strings(self.string_begin, self.string)

    @property
    def final_strings(self) -> Strings:
        """The strings of all states."""
        return Strings(self.final_string_begin, self.final_string)

    def arc_string(self, arc: int) -> np.ndarray:
        """Return the transition-ids of an arc, int32[its frames]."""
        return self.string[self.string_begin[arc] : self.string_begin[arc + 1]]

    def state_string(self, state: int) -> np.ndarray:
        """Return the transition-ids behind a final state, int32[its frames]."""
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
        """Make a compact lattice from arcs in any order; see `Lattice.from_arcs`.

        Args:
            arcs: int32[A, 3]: source, target, word.
            costs: float32[A, 2]: graph and acoustic cost.
            strings: of the arcs.
            final_costs: float32[S, 2], likewise; inf where a state is not final.
            final_strings: of the states; None for empty ones.
            start: the start state.

        Raises:
            UserError: as there.
        """
        if final_strings is None:
            final_strings = Strings.empty(len(final_costs))
        rows, states, begin, target = _sorted(arcs, len(final_costs), start)
        strings, final_strings = strings.take(rows), final_strings.take(states)
        finals = final_costs[states]
        lengths = strings.lengths.astype(np.int32)
        end_lengths = np.where(_is_final(finals), final_strings.lengths, -1)
        return cls(
            **_columns(begin, target, arcs[rows, 2], costs[rows], finals),
            **_frames(begin, target, lengths, end_lengths),
            string_begin=strings.begin,
            string=strings.ids,
            final_string_begin=final_strings.begin,
            final_string=final_strings.ids,
        )

    def to_lattice(self) -> Lattice:
        """Give each transition-id an arc of its own.

        The first arc of a string carries the word and the costs. A final state with a
        string is followed by a linear path to a new final state. New states stand right
        behind the state that their path leaves, so that the order stays a topological
        one (Kaldi numbers them behind all others).

        Source: Kaldi `fstext/lattice-utils-inl.h` (`ConvertLatticeFromCompact`).
        """
        columns, costs, final_costs, frame, begin = expand_strings(
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

    def to_compact(self) -> CompactLattice:
        """Return the lattice itself."""
        return self

    def _ids_of(self, arcs: np.ndarray, states: np.ndarray) -> dict[str, np.ndarray]:
        strings, finals = self.strings.take(arcs), self.final_strings.take(states)
        return {
            "string_begin": strings.begin,
            "string": strings.ids,
            "final_string_begin": finals.begin,
            "final_string": finals.ids,
        }


def _is_final(final_costs: np.ndarray) -> np.ndarray:
    """Return which of float32[S, 2] are the costs of final states, bool[S]."""
    return np.isfinite(final_costs[:, 0]) & np.isfinite(final_costs[:, 1])


def _sorted(
    arcs: np.ndarray, num_states: int, start: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sort states topologically and arcs by source.

    Args:
        arcs: int32[A, .]: source, target, ...
        num_states: S.
        start: the start state.

    Returns:
        Numbers of the arcs that are left, in order; numbers of the states; offsets of
        the arcs by state; targets.

    Raises:
        UserError: the arcs form a cycle.
    """
    rows = np.argsort(arcs[:, 0], kind="stable")
    begin = arc_offsets(arcs[:, 0], num_states)
    target = np.ascontiguousarray(arcs[rows, 1], np.int32)
    states = topological_order(begin, target, start)
    if len(states) == 0 and num_states:
        raise UserError(
            "a lattice with a cycle", remedy="write it from an acyclic lattice"
        )
    if np.array_equal(states, np.arange(num_states)):
        return rows, states, begin, target
    number = np.full(num_states, -1, np.int32)
    number[states] = np.arange(len(states))
    source = number[arcs[:, 0]]
    rows = np.argsort(source, kind="stable")
    rows = rows[np.count_nonzero(source < 0) :]
    return rows, states, arc_offsets(source[rows], len(states)), number[arcs[rows, 1]]


def _columns(
    begin: np.ndarray,
    target: np.ndarray,
    word: np.ndarray,
    costs: np.ndarray,
    final_costs: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the fields that need no computation, by name."""
    arc_costs = np.ascontiguousarray(costs.T, np.float32)
    finals = np.ascontiguousarray(final_costs.T, np.float32)
    return {
        "arc_begin": begin,
        "next_state": target,
        "word": np.ascontiguousarray(word, np.int32),
        "graph_cost": arc_costs[0],
        "acoustic_cost": arc_costs[1],
        "final_graph_cost": finals[0],
        "final_acoustic_cost": finals[1],
    }


def _frames(
    begin: np.ndarray, target: np.ndarray, lengths: np.ndarray, end_lengths: np.ndarray
) -> dict[str, Any]:
    """Return `frame` and `num_frames`, by name.

    Args:
        begin: int64[S + 1].
        target: int32[A].
        lengths: int32[A], frames of each arc.
        end_lengths: int[S], frames behind each final state, -1 for other states.

    Raises:
        UserError: paths differ in their number of frames.
    """
    frame, is_consistent = state_frames(begin, target, lengths)
    ends = np.unique((frame + end_lengths)[end_lengths >= 0])
    if not is_consistent or len(ends) > 1:
        raise UserError(
            "a lattice with paths of different numbers of frames",
            remedy="only lattices of whole utterances, frame by frame, are read",
        )
    num_frames = int(ends[0]) if len(ends) else int(frame.max(initial=0))
    return {"frame": frame, "num_frames": num_frames}
