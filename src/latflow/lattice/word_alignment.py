"""Compact lattices with one arc for each word, or silence, and its exact frames.

In a decoder's lattice a word's label stands somewhere near the word: determinisation of
the graph and of the lattice moves labels and transition-ids. Here the paths are cut up
anew, so that each arc carries one word and just the transition-ids of its phones, or no
word and those of a silence. Word sequences, transition-ids and costs of paths stay.

A state of the new lattice is a state of the old one together with what has been read on
the way to it and not yet been given away (see `latflow.lattice.word_units`). Costs are
given away with the next word, as they are read.

Public: `align_words`, `WordAligner`.

Source: Kaldi `lat/word-align-lattice.cc` (`lattice-align-words`) and, for lexicons
without position-dependent phones, `lat/word-align-lattice-lexicon.cc`
(`lattice-align-words-lexicon`); the epsilon arcs that Kaldi makes and removes later are
never made here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.compact import CompactLattice, Strings
from latflow.lattice.word_units import BoundaryRule, LexiconRule, Pending, Rule, Unit

_FREE_PLACES = 1000  # that `max_expand` does not count

Cost = tuple[float, float]  # graph, acoustic


def align_words(
    lattice: CompactLattice, model: TransitionModel, lang: Lang, *, reorder: bool = True
) -> CompactLattice:
    """Give each word of a lattice an arc with its exact frames.

    Silences get arcs without a word. A `WordAligner` does the same for many lattices.

    Args:
        lattice: a lattice, best determinised on words.
        model: what its transition-ids are ids of.
        lang: the language directory that the graph was made of.
        reorder: whether self-loops follow the arc that leaves their state.

    Raises:
        UserError: see `WordAligner`.
    """
    return WordAligner(model, lang, reorder=reorder)(lattice)


class WordAligner:
    """Aligns words of lattices.

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
            states are met on the way (one that is not deterministic may have paths
            without measure).

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
        self._rule: Rule
        if lang.word_boundary is not None:
            self._rule = BoundaryRule(
                model,
                lang.word_boundary,
                silence_label=silence_label,
                partial_label=partial_label,
                reorder=reorder,
            )
        else:
            self._rule = LexiconRule(
                model,
                _lexicon_ids(lang),
                lang.optional_silence,
                silence_label=silence_label,
                partial_label=partial_label,
                reorder=reorder,
            )

    def __call__(self, lattice: CompactLattice) -> CompactLattice:
        """Align one lattice; see `align_words`."""
        paths = _Paths.of(lattice)
        found = self._aligned(paths, may_force=isinstance(self._rule, BoundaryRule))
        if not found.finals:  # no path is whole words only: let their ends be cut off
            found = self._aligned(paths, may_force=True)
        if not found.finals:
            raise UserError(
                "a lattice without a path to a final state",
                remedy="decode the utterance again",
            )
        return found.lattice()

    def _aligned(self, paths: _Paths, *, may_force: bool) -> _Output:
        """Follow all paths from the start.

        Args:
            paths: the lattice.
            may_force: whether what is left at the end of a path becomes a unit though
                the rule has none.
        """
        budget = _FREE_PLACES + self._max_expand * paths.end
        output = _Output()
        queue = [_Place(0, Pending())]
        output.state(queue[0])
        while queue:
            place = queue.pop()
            here = output.state(place)
            for cost, read, units in _closure(place, paths, self._rule):
                budget -= 1
                if budget < 0:
                    raise UserError(
                        "a lattice with too many paths to align their words",
                        remedy="determinise it before",
                    )
                is_forced = may_force and read.state == paths.end
                last = self._rule.forced(read.pending) if is_forced else []
                is_done = not read.pending.ids and (is_forced or not read.pending.words)
                if is_done and read.state == paths.end:
                    output.add_final(here, cost)
                for unit in units or last:
                    rest = _Place(read.state, read.pending.without(unit))
                    if not output.has(rest):
                        queue.append(rest)
                    ids = read.pending.ids[: 4 * unit.num_ids]
                    output.add(here, output.state(rest), unit.word, ids, cost)
        return output


def _lexicon_ids(lang: Lang) -> dict[int, list[tuple[int, ...]]]:
    """Pronunciations as ids, by word id."""
    return {
        lang.word_ids[word]: [
            tuple(lang.phone_ids[phone] for phone in phones) for _, phones in entries
        ]
        for word, entries in lang.lexicon.items()
        if word in lang.word_ids
    }


class _Place(NamedTuple):
    """A state of the lattice with what is pending there."""

    state: int
    pending: Pending


class _Step(NamedTuple):
    """An arc of the lattice."""

    target: int
    word: int
    ids: bytes
    cost: Cost


@dataclass(frozen=True)
class _Paths:
    """The arcs of a lattice, with one more state, the end, behind final states.

    Attributes:
        arcs: those of each state.
        end: number of the end.
    """

    arcs: list[list[_Step]]
    end: int

    @classmethod
    def of(cls, lattice: CompactLattice) -> _Paths:
        """Take a lattice apart, without states that lead nowhere."""
        end = len(lattice.final_graph_cost)
        arcs: list[list[_Step]] = [[] for _ in range(end + 1)]
        begin, bounds = lattice.arc_begin.tolist(), lattice.string_begin.tolist()
        columns = (lattice.next_state.tolist(), lattice.word.tolist())
        costs = (lattice.graph_cost.tolist(), lattice.acoustic_cost.tolist())
        final_costs = (
            lattice.final_graph_cost.tolist(),
            lattice.final_acoustic_cost.tolist(),
        )
        data = lattice.string.astype(np.int32).tobytes()
        finals = lattice.final_string.astype(np.int32).tobytes()
        final_bounds = lattice.final_string_begin.tolist()
        for state in range(end - 1, -1, -1):
            cost = (final_costs[0][state], final_costs[1][state])
            if max(cost) < np.inf:
                ids = finals[4 * final_bounds[state] : 4 * final_bounds[state + 1]]
                arcs[state].append(_Step(end, 0, ids, cost))
            for arc in range(begin[state], begin[state + 1]):
                target = columns[0][arc]
                if arcs[target]:
                    ids = data[4 * bounds[arc] : 4 * bounds[arc + 1]]
                    cost = (costs[0][arc], costs[1][arc])
                    arcs[state].append(_Step(target, columns[1][arc], ids, cost))
        return cls(arcs, end)


def _closure(
    place: _Place, paths: _Paths, rule: Rule
) -> Iterator[tuple[Cost, _Place, list[Unit]]]:
    """Read on from a place, as far as may be without giving a unit away.

    Yields:
        (least cost on the way, place, units that may be cut off there) of each place
        that is met, the first one included. Of two ways to one place, which then have
        the same words and transition-ids, the cheaper one counts, as in Kaldi at scales
        of 1.
    """
    costs: dict[_Place, Cost] = {place: (0.0, 0.0)}
    heap = [(place.state, 0, place)]  # lower states come first: ways to a place join
    met = 1
    while heap:
        state, _, here = heapq.heappop(heap)
        cost = costs[here]
        units = rule.units(here.pending, is_end=state == paths.end)
        yield cost, here, units
        if state == paths.end or not rule.may_advance(here.pending, units):
            continue
        for step in paths.arcs[state]:
            pending = rule.advanced(here.pending, step.ids, step.word)
            there = _Place(step.target, pending)
            total = (cost[0] + step.cost[0], cost[1] + step.cost[1])
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
    """

    arcs: dict[tuple[int, int, int, bytes], Cost] = field(default_factory=dict)
    finals: dict[int, Cost] = field(default_factory=dict)
    _states: dict[_Place, int] = field(default_factory=dict)

    def has(self, place: _Place) -> bool:
        """Whether a place has a state."""
        return place in self._states

    def state(self, place: _Place) -> int:
        """The state of a place."""
        return self._states.setdefault(place, len(self._states))

    def add(self, source: int, target: int, word: int, ids: bytes, cost: Cost) -> None:
        """Add an arc; of two that differ in costs only, the cheaper one stays."""
        key = (source, target, word, ids)
        if key not in self.arcs or sum(cost) < sum(self.arcs[key]):
            self.arcs[key] = cost

    def add_final(self, state: int, cost: Cost) -> None:
        """Make a state final."""
        if state not in self.finals or sum(cost) < sum(self.finals[state]):
            self.finals[state] = cost

    def lattice(self) -> CompactLattice:
        """The lattice, without states from which no path ends."""
        useful = self._useful()
        kept = [
            (key, cost)
            for key, cost in self.arcs.items()
            if key[0] in useful and key[1] in useful
        ]
        lengths = [len(key[3]) // 4 for key, _ in kept]
        begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids = np.frombuffer(b"".join(key[3] for key, _ in kept), np.int32)
        final_costs = np.full((len(self._states), 2), np.inf, np.float32)
        for state, cost in self.finals.items():
            final_costs[state] = cost
        return CompactLattice.from_arcs(
            np.array([key[:3] for key, _ in kept], np.int32).reshape(-1, 3),
            np.array([cost for _, cost in kept], np.float32).reshape(-1, 2),
            Strings(begin, ids.copy()),
            final_costs,
        )

    def _useful(self) -> set[int]:
        """States from which a final one can be reached."""
        sources: dict[int, list[int]] = {}
        for source, target, _, _ in self.arcs:
            sources.setdefault(target, []).append(source)
        useful, stack = set(self.finals), list(self.finals)
        while stack:
            for source in sources.get(stack.pop(), ()):
                if source not in useful:
                    useful.add(source)
                    stack.append(source)
        return useful
