"""The phone language model of lattice-free MMI, an n-gram that never backs off.

A state is a history of phones, and its arcs are the phones that followed it in the
data, by relative frequency: no smoothing and no back-off arcs, since both would make
the denominator graph larger. To bound its size, long histories are merged with the
history without their first phone, one after another, those first that cost the least
log-likelihood of the data.

Source: Kaldi `chain/language-model.{h,cc}`; Povey et al. 2016, "Purely
sequence-trained neural networks for ASR based on lattice-free MMI", section 2.6.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import exp, log

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.options import PhoneLmOptions

logger = logging.getLogger(__name__)

History = tuple[int, ...]

_BOUNDARY = 0  # stands before the first phone and behind the last one
_BLOCK = 4096  # sequences counted together
_NUM_STAGES = 4  # of pruning; costs are computed again at the start of each
_TOLERANCE = 0.001  # relative change of a cost that counts as none
_DIGITS = 9  # of costs, so that equal ones tie on every machine
_TIE = 1e-15  # per count: cost of merging with a history that has no counts yet


def estimate_phone_lm(
    sequences: Iterable[Sequence[int] | np.ndarray], options: PhoneLmOptions
) -> Graph:
    """Estimate the phone language model of some phone sequences.

    Args:
        sequences: phones (> 0) of each utterance, silences among them.
        options: orders, and the number of states.

    Returns:
        An acceptor without epsilons whose arcs are sorted by label. The weights of the
        arcs of a state, and of its ending, are probabilities that sum to one.

    Raises:
        UserError: there are no phones, or they are too many for n-grams of this order.
    """
    states = _LmStates(options)
    for history, phone, count in _count_ngrams(sequences, options.ngram_order):
        states.add(history, phone, count)
    if not states.index:
        raise UserError(
            "no phone sequences to estimate the phone language model from",
            remedy="look at the ledger of the alignments",
        )
    before = states.num_active
    states.prune()
    graph, perplexity = states.graph()
    logger.info(
        "phone language model: %d of %d states, %d arcs, perplexity %.3f on its data",
        graph.num_states,
        before,
        graph.num_arcs,
        perplexity,
    )
    return graph


def _count_ngrams(
    sequences: Iterable[Sequence[int] | np.ndarray], order: int
) -> list[tuple[History, int, int]]:
    """Return (history, phone, count) of all n-grams, by the history's first place.

    The history at the beginning of a sequence is (0,), after its first phone (0, phone)
    and so on until it has `order` - 1 members; the last n-gram ends with 0.
    """
    remaining = iter(sequences)
    found: dict[History, int] = {}
    while block := list(islice(remaining, _BLOCK)):
        windows = np.concatenate([_windows(sequence, order) for sequence in block])
        unique, first, counts = np.unique(
            windows, axis=0, return_index=True, return_counts=True
        )
        by_place = np.argsort(first)
        for row, count in zip(
            unique[by_place].tolist(), counts[by_place].tolist(), strict=True
        ):
            key = tuple(row)
            found[key] = found.get(key, 0) + count
    return [(_history(key), key[-1], count) for key, count in found.items()]


def _windows(sequence: Sequence[int] | np.ndarray, order: int) -> np.ndarray:
    """Return the n-grams of a sequence, int32[N + 1, order], 0 beyond its ends."""
    phones = np.asarray(sequence, np.int32)
    if len(phones) and phones.min() <= 0:
        raise UserError(
            f"phone {phones.min()} in a phone sequence is not positive",
            remedy="use the alignments and the model of one system",
        )
    if not len(phones):
        return np.zeros((0, order), np.int32)
    padded = np.pad(phones, (order - 1, 1))
    return np.lib.stride_tricks.sliding_window_view(padded, order)


def _history(window: Sequence[int]) -> History:
    """Return the history in a window: one zero before the first phone, no more."""
    history = list(window[:-1])
    while len(history) > 1 and history[1] == _BOUNDARY:
        del history[0]
    return tuple(history)


@dataclass
class _LmState:
    """A history, and what was seen behind it.

    Attributes:
        history: the phones, the last one last.
        shorter: number of the state that has all but the first of them; -1 if it may
            not be merged with one.
        counts: of each phone behind this history, 0 for the end.
        total: sum of these.
        total_with_longer: and of the states that may be merged with this one.
    """

    history: History
    shorter: int = -1
    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    total_with_longer: int = 0

    def add(self, phone: int, count: int) -> None:
        """Count a phone."""
        self.counts[phone] = self.counts.get(phone, 0) + count
        self.total += count


class _LmStates:
    """The states while they are counted and merged.

    Args:
        options: orders, and the number of states.

    Attributes:
        states: by number.
        index: number of the state of each history.
    """

    def __init__(self, options: PhoneLmOptions) -> None:
        self._options = options
        self.states: list[_LmState] = []
        self.index: dict[History, int] = {}

    @property
    def num_active(self) -> int:
        """Number of states that have counts."""
        return sum(state.total > 0 for state in self.states)

    def add(self, history: History, phone: int, count: int) -> None:
        """Count an n-gram."""
        self.states[self._number(history)].add(phone, count)

    def _number(self, history: History) -> int:
        """Return the number of a history's state, which is made if need be."""
        known = self.index.get(history)
        if known is not None:
            return known
        number = self.index[history] = len(self.states)
        state = _LmState(history)
        self.states.append(state)
        if len(history) >= self._options.no_prune_ngram_order:
            state.shorter = self._number(history[1:])
        return number

    # -- pruning --------------------------------------------------------------------

    def prune(self) -> None:
        """Merge states until there are few enough, in stages of equal numbers."""
        order = self._options.no_prune_ngram_order
        for state in self.states:
            other = state
            other.total_with_longer += state.total
            while other.shorter >= 0:
                other = self.states[other.shorter]
                other.total_with_longer += state.total
        num_basic = sum(len(history) == order - 1 for history in self.index)
        target = num_basic + self._options.num_extra_lm_states
        first = active = self.num_active
        for stage in range(1, _NUM_STAGES + 1):
            # as integers in C, which round towards zero
            removed = int((first - target) * stage / _NUM_STAGES)
            active = self._prune_to(active, first - removed)

    def _prune_to(self, active: int, target: int) -> int:
        """Merge the cheapest states until `target` have counts; returns how many do."""
        queue = [
            (self._cost(number), -number)
            for number in range(len(self.states))
            if self._may_merge(number)
        ]
        heapq.heapify(queue)
        while active > target and queue:
            cost, negative = heapq.heappop(queue)
            present = self._cost(-negative)
            if abs(present - cost) > _TOLERANCE * (present + cost):
                heapq.heappush(queue, (present, negative))
                continue
            number = self.states[-negative].shorter
            active -= self.states[number].total > 0
            self._merge(-negative)
            if self._may_merge(number):  # not before: this state was apart from it
                heapq.heappush(queue, (self._cost(number), -number))
        return active

    def _may_merge(self, number: int) -> bool:
        """Return whether a state may be merged with that of the shorter history.

        It must have counts, no longer history may still be apart from it, and none of
        its arcs may need the whole history to find the state it leads to.
        """
        state = self.states[number]
        if state.shorter < 0 or not 0 < state.total == state.total_with_longer:
            return False
        if len(state.history) == self._options.ngram_order - 1:
            return True
        following = (self.index.get((*state.history, phone)) for phone in state.counts)
        return not any(
            other is not None and self.states[other].total_with_longer
            for other in following
        )

    def _cost(self, number: int) -> float:
        """Return the log-likelihood that merging a state loses, in nats, >= 0."""
        state = self.states[number]
        shorter = self.states[state.shorter]
        if not shorter.total:
            return _TIE * state.total
        merged = dict(shorter.counts)
        for phone, count in state.counts.items():
            merged[phone] = merged.get(phone, 0) + count
        apart = _log_like(state.counts) + _log_like(shorter.counts)
        return max(0.0, round(apart - _log_like(merged), _DIGITS))

    def _merge(self, number: int) -> None:
        """Give the counts of a state to that of the shorter history."""
        state = self.states[number]
        shorter = self.states[state.shorter]
        for phone, count in state.counts.items():
            shorter.add(phone, count)
        state.counts, state.total, state.total_with_longer = {}, 0, 0

    # -- result ---------------------------------------------------------------------

    def graph(self) -> tuple[Graph, float]:
        """Return the acceptor, and the perplexity on the data."""
        kept = [state for state in self.states if state.total]
        number = {state.history: n for n, state in enumerate(kept)}
        sources, arcs = [], []
        final = np.full(len(kept), np.inf, np.float32)
        for n, state in enumerate(kept):
            for phone, count in sorted(state.counts.items()):
                cost = log(state.total / count)
                if phone == _BOUNDARY:
                    final[n] = cost
                    continue
                target = _longest_known((*state.history, phone), number)
                sources.append(n)
                arcs.append((phone, phone, cost, target))
        start = _longest_known((_BOUNDARY,), number)
        log_like = sum(_log_like(state.counts) for state in kept)
        total = sum(state.total for state in kept)
        graph = Graph.from_arc_list(
            start, np.array(sources, np.int64), np.array(arcs, ARC), final
        )
        return graph, exp(-log_like / total)


def _log_like(counts: dict[int, int]) -> float:
    """Return the log-likelihood of counts under their relative frequencies, in nats."""
    values = np.fromiter(counts.values(), np.float64, len(counts))
    return float(values @ np.log(values / values.sum()))


def _longest_known(history: History, number: dict[History, int]) -> int:
    """Return the number of a history, or of the longest end of it that has one."""
    while history not in number:
        history = history[1:]
    return number[history]
