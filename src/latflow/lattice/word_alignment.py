"""Compact lattices with one arc for each word, or silence, and its exact frames.

In a decoder's lattice a word's label stands somewhere near the word: determinization of
the graph and of the lattice moves labels and transition-ids. Here the paths are divided
again, so that each arc carries one word and just the transition-ids of its phones, or
no word and those of a silence. Word sequences, transition-ids and costs of paths stay.

A state of the new lattice is a state of the old one together with what has been read on
a path to it and not yet been output (see `latflow.lattice.word_units`). Costs are
output with the next word, as they are read.

Source: Kaldi `lat/word-align-lattice.cc` (`lattice-align-words`) and, for lexicons
without position-dependent phones, `lat/word-align-lattice-lexicon.cc`
(`lattice-align-words-lexicon`); the epsilon arcs that Kaldi makes and removes later are
never made here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.lattice import CompactLattice, Strings
from latflow.lattice.word_units import (
    BoundaryRule,
    ComputationState,
    LexiconRule,
    Rule,
    Unit,
)

_FREE_STATES = 1000  # that `max_expand` does not count

Cost = tuple[float, float]  # graph, acoustic


def align_words(
    lattice: CompactLattice, model: TransitionModel, lang: Lang, *, reorder: bool = True
) -> CompactLattice:
    """Give each word of a lattice, best a determinized one, an arc with its frames.

    Silences get arcs without a word. A `WordAligner` does the same for many lattices;
    it has the arguments and errors.
    """
    return WordAligner(model, lang, reorder=reorder)(lattice)


class WordAligner:
    """Align words of lattices.

    Words are found by `lang.word_boundary` where phones are position-dependent, and by
    the pronunciations of the lexicon where they are not.

    A path of a search that reached no final state may end inside a word: its last arc
    then carries the label of the word that was begun, or `partial_label`; labels of
    words of which no frame was seen are lost (as in Kaldi).

    Args:
        model: what the transition-ids are ids of.
        lang: the language directory that the graph was made of.
        silence_label: word id for silences.
        partial_label: word id for a part of a word without a label.
        reorder: whether self-loops follow the arc that leaves their state.
        max_expand: a lattice is refused if more than 1000 and this many times its
            states are met (one that is not deterministic may have paths without
            measure).

    Raises:
        UserError: phones of the model are missing in `lang`; from a call: the lattice
            does not fit the model or the lexicon, or grows too large.
    """

    def __init__(
        self,
        model: TransitionModel,
        lang: Lang,
        *,
        silence_label: int = 0,
        partial_label: int = 0,
        reorder: bool = True,
        max_expand: float = 100.0,
    ) -> None:
        self._max_expand = max_expand
        labels = {"silence_label": silence_label, "partial_label": partial_label}
        self._rule: Rule
        if lang.word_boundary is not None:
            self._rule = BoundaryRule(
                model, lang.word_boundary, reorder=reorder, **labels
            )
            return
        lexicon = {
            lang.word_ids[word]: [
                tuple(lang.phone_ids[phone] for phone in phones)
                for _, phones in entries
            ]
            for word, entries in lang.lexicon.items()
            if word in lang.word_ids
        }
        self._rule = LexiconRule(
            model, lexicon, lang.optional_silence, reorder=reorder, **labels
        )

    def __call__(self, lattice: CompactLattice) -> CompactLattice:
        """Align one lattice; see `align_words`."""
        arcs = _arcs_by_state(lattice)
        found = self._aligned(arcs, may_force=isinstance(self._rule, BoundaryRule))
        if not found.finals:  # no path is whole words only: let them break off
            found = self._aligned(arcs, may_force=True)
        if not found.finals:
            raise UserError(
                "a lattice without a path to a final state",
                remedy="decode the utterance again",
            )
        return found.lattice()

    def _aligned(self, arcs: list[list[_Arc]], *, may_force: bool) -> _Output:
        """Follow all paths from the start.

        Args:
            arcs: of the lattice.
            may_force: whether what is left at the end of a path becomes a unit though
                the rule has none.
        """
        end = len(arcs) - 1
        budget = _FREE_STATES + self._max_expand * end
        output = _Output()
        queue = [_Tuple(0, ComputationState())]
        output.state(queue[0])
        while queue:
            first = queue.pop()
            source = output.state(first)
            for cost, (state, read), units in _closure(first, arcs, self._rule):
                budget -= 1
                if budget < 0:
                    raise UserError(
                        "a lattice with too many paths to align their words",
                        remedy="determinize it before",
                    )
                is_forced = may_force and state == end
                last = self._rule.forced(read) if is_forced else []
                is_done = not read.ids and (is_forced or not read.words)
                if is_done and state == end:
                    output.add_final(source, cost)
                for unit in units or last:
                    rest = _Tuple(state, read.after(unit))
                    if rest not in output.states:
                        queue.append(rest)
                    ids = read.ids[: 4 * unit.num_ids]
                    output.add((source, output.state(rest), unit.word, ids), cost)
        return output


class _Tuple(NamedTuple):
    """A state of the lattice with what was read there; the name is Kaldi's."""

    state: int
    read: ComputationState


class _Arc(NamedTuple):
    """An arc of the lattice; transition-ids as the bytes of an int32 array."""

    target: int
    word: int
    ids: bytes
    cost: Cost


def _arcs_by_state(lattice: CompactLattice) -> list[list[_Arc]]:
    """Return the arcs of each state; those of final states to an added end, too."""
    lattice = lattice.connected()
    arcs = zip(
        lattice.source().tolist(),
        lattice.next_state.tolist(),
        lattice.word.tolist(),
        _split(lattice.strings),
        lattice.graph_cost.tolist(),
        lattice.acoustic_cost.tolist(),
        strict=True,
    )
    end = max(lattice.num_states, 1)  # without a path the end is not the start
    found: list[list[_Arc]] = [[] for _ in range(end + 1)]
    strings = _split(lattice.final_strings)
    for state in np.flatnonzero(lattice.is_final).tolist():
        graph, acoustic = lattice.final_graph_cost, lattice.final_acoustic_cost
        cost = (float(graph[state]), float(acoustic[state]))
        found[state].append(_Arc(end, 0, strings[state], cost))
    for source, target, word, ids, graph_cost, acoustic_cost in arcs:
        found[source].append(_Arc(target, word, ids, (graph_cost, acoustic_cost)))
    return found


def _split(strings: Strings) -> list[bytes]:
    data = strings.ids.astype(np.int32).tobytes()
    return [data[4 * i : 4 * j] for i, j in pairwise(strings.begin.tolist())]


def _closure(
    first: _Tuple, arcs: list[list[_Arc]], rule: Rule
) -> Iterator[tuple[Cost, _Tuple, list[Unit]]]:
    """Read on from a state, as far as may be without output.

    Yields:
        (least cost of a path there, tuple, units that may be output) of each tuple that
        is met, the first one included. Of two paths to one tuple, which then have the
        same words and transition-ids, the cheaper one counts, as in Kaldi at scales
        of 1.
    """
    costs: dict[_Tuple, Cost] = {first: (0.0, 0.0)}
    heap = [(first.state, 0, first)]  # lower states come first: paths to a tuple join
    met = 1
    while heap:
        state, _, here = heapq.heappop(heap)
        cost = costs[here]
        is_end = state == len(arcs) - 1
        units = rule.units(here.read, is_end=is_end)
        yield cost, here, units
        if is_end or not rule.may_advance(here.read, units):
            continue
        for arc in arcs[state]:
            there = _Tuple(arc.target, rule.advance(here.read, arc.ids, arc.word))
            total = (cost[0] + arc.cost[0], cost[1] + arc.cost[1])
            if there not in costs:
                heapq.heappush(heap, (there.state, met, there))
                met += 1
                costs[there] = total
            elif sum(total) < sum(costs[there]):
                costs[there] = total


@dataclass
class _Output:
    """The new lattice as it grows.

    Attributes:
        arcs: (source, target, word, transition-ids) -> cost.
        finals: state -> cost.
        states: tuple -> state.
    """

    arcs: dict[tuple[int, int, int, bytes], Cost] = field(default_factory=dict)
    finals: dict[int, Cost] = field(default_factory=dict)
    states: dict[_Tuple, int] = field(default_factory=dict)

    def state(self, of: _Tuple) -> int:
        """Return the state of a tuple, a new one if it has none."""
        return self.states.setdefault(of, len(self.states))

    def add(self, arc: tuple[int, int, int, bytes], cost: Cost) -> None:
        """Add an arc; of two that differ in costs only, the cheaper one stays."""
        if arc not in self.arcs or sum(cost) < sum(self.arcs[arc]):
            self.arcs[arc] = cost

    def add_final(self, state: int, cost: Cost) -> None:
        """Make a state final."""
        if state not in self.finals or sum(cost) < sum(self.finals[state]):
            self.finals[state] = cost

    def lattice(self) -> CompactLattice:
        """Return the lattice, without states from which no path ends."""
        lengths = [len(arc[3]) // 4 for arc in self.arcs]
        ids = np.frombuffer(b"".join(arc[3] for arc in self.arcs), np.int32)
        final_costs = np.full((len(self.states), 2), np.inf, np.float32)
        for state, cost in self.finals.items():
            final_costs[state] = cost
        lattice = CompactLattice.from_arcs(
            np.array([arc[:3] for arc in self.arcs], np.int32).reshape(-1, 3),
            np.array([*self.arcs.values()], np.float32).reshape(-1, 2),
            Strings(np.cumsum([0, *lengths]).astype(np.int64), ids.copy()),
            final_costs,
        )
        return lattice.connected()
