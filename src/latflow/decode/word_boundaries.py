"""States of HCL in which words begin and end.

See `latflow.decode.added_words`, which lets other words begin and end there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from latflow.decode.parts import BACK_OFF
from latflow.decode.reachable import Reachable
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.hmm.transition_model import TransitionModel

NO_PHONE = 0  # before the first one of an utterance
_MOST_BRIDGES = 8  # epsilon arcs between the end of a word and the next


@dataclass(frozen=True, eq=False)
class Boundaries:
    """States of HCL in which words begin and end.

    Attributes:
        state: int32[B].
        phone: int32[B], the one that has just been; 0 where a sentence begins.
        cost: float32[B], of beginning a word there: of leaving the phone, and of no
            silence.
        leaving: float32[B], the part of it that is the phone's.
        num_arcs: int64[B], that leave the state.
        has_loop: bool[B], whether its self-loop leads back to it: that of a copy, which
            backs off (`let_words_back_off`), leads to the state that it is a copy of.
        self_loop_scale: that the graph was made with.
    """

    state: np.ndarray
    phone: np.ndarray
    cost: np.ndarray
    leaving: np.ndarray
    num_arcs: np.ndarray
    has_loop: np.ndarray
    self_loop_scale: float

    def behind(self, phone: int) -> tuple[int, float]:
        """Return the number of the state that follows a word with this last phone.

        Where no word of HCL ends with it, the start state has to do. Of several states,
        that with most arcs: in others, silence or none has been chosen before.

        Returns:
            (number; what its arcs cost too much, or too little, for a path that comes
            from elsewhere: epsilon removal moves weights over states).
        """
        found = np.flatnonzero((self.phone == phone) & self.has_loop)
        if not len(found):
            found = np.flatnonzero(self.phone == NO_PHONE)
        own = self.cost - self.leaving
        at = int(found[np.argmax(self.num_arcs[found])])
        return at, float(own[at]) - self.common_cost

    @cached_property
    def common_cost(self) -> float:
        """Return what words cost in common behind most phones, those of speech."""
        own = self.cost - self.leaving
        most = np.full(int(self.phone.max()) + 1, -np.inf, np.float32)
        np.maximum.at(most, self.phone, own)
        return float(np.median(most[np.isfinite(most)]))

    @cached_property
    def end_cost(self) -> float:
        """Return what the end of a word costs.

        The choice between silence and none is paid by the last phone of a word; in the
        start state, where no word has ended, by the first one of the next.
        """
        start = float(self.cost[self.phone == NO_PHONE].max())
        return start - self.common_cost


def find_boundaries(
    hcl: Graph,
    labels: np.ndarray,
    reachable: Reachable,
    num_words: int,
    model: TransitionModel,
    sentence_starts: np.ndarray,
) -> Boundaries:
    """Find where words begin and end.

    Args:
        hcl: with self-loops behind the arcs that enter their states.
        labels: int32[A], of its arcs; the words that G has are 0 ... num_words - 1.
        reachable: of the same.
        num_words: that G has.
        model: of its transition-ids.
        sentence_starts: states in which a sentence begins, as in the start.

    Raises:
        UserError: there is no such state.
    """
    source = hcl.sources()
    tids, weight = np.asarray(hcl.ilabel), np.asarray(hcl.weight)
    has_all = _have_all_words(reachable, num_words - 1)
    cost = _entry_costs(hcl, labels, has_all)
    ends = np.zeros(model.num_states + 1, np.bool_)  # HMM states that end a phone
    ends[model.state[model.is_final]] = True
    is_loop = model.is_self_loop[tids] & ends[model.state[tids]]
    phone = np.full(hcl.num_states, -1, np.int32)
    leaving = np.zeros(hcl.num_states, np.float32)
    scale = _self_loop_scale(tids[is_loop], weight[is_loop], model)
    classes = model.state[tids[is_loop]]
    phone[source[is_loop]] = model.phone[tids[is_loop]]
    leaving[source[is_loop]] = -scale * model.non_self_loop_log_prob[classes]
    phone[np.append(sentence_starts, hcl.start)] = NO_PHONE
    states = np.flatnonzero(np.isfinite(cost) & (phone >= 0)).astype(np.int32)
    if not len(states) or hcl.start not in states:
        raise UserError(
            "no state of HCL lets all words begin",
            remedy="make the graph again with decode.composition: lookahead",
        )
    return Boundaries(
        states,
        phone[states],
        cost[states],
        leaving[states],
        np.diff(hcl.arc_begin)[states],
        np.isin(states, source[is_loop & (source == hcl.next_state)]),
        float(scale),
    )


def _entry_costs(hcl: Graph, labels: np.ndarray, has_all: np.ndarray) -> np.ndarray:
    """Return what words cost in common where any of them may begin.

    That is leaving the phone before, and no silence: what the best word costs, in HCL
    that is determinized in the tropical semiring.

    Args:
        hcl: its arcs, and
        labels: their labels.
        has_all: bool[S], whether all words may come next.

    Returns:
        float32[S]; inf where no word begins.
    """
    source, target = hcl.sources(), np.asarray(hcl.next_state)
    weight = np.asarray(hcl.weight)
    is_plain = has_all[source] & (labels != BACK_OFF)
    begins = is_plain & ((labels >= 0) | ~has_all[target])
    cost = np.full(hcl.num_states, np.inf, np.float32)
    np.minimum.at(cost, source[begins], weight[begins])
    # Epsilon arcs lead to such states, from the HMM that ends.
    is_bridge = is_plain & ~begins & (np.asarray(hcl.ilabel) == 0)
    here, there = source[is_bridge], target[is_bridge]
    for _ in range(_MOST_BRIDGES):
        np.minimum.at(cost, here, weight[is_bridge] + cost[there])
    return cost


def _have_all_words(reachable: Reachable, last: int) -> np.ndarray:
    """Return whether all words, 0 ... last, can come next from states, bool[S]."""
    begin = reachable.begin[:-1]
    is_empty = begin == reachable.begin[1:]
    none = np.array([[1, 0]], np.int32)
    rows = np.concatenate([reachable.ranges, none])[begin]
    has_all = ~is_empty & (rows[:, 0] == 0) & (rows[:, 1] >= last)
    return has_all[reachable.set_of]


def _self_loop_scale(
    tids: np.ndarray, weight: np.ndarray, model: TransitionModel
) -> float:
    """Return the scale of self-loops that a graph was made with."""
    log_prob = -model.log_prob[tids]
    has_cost = log_prob > 0
    return (
        float(np.median(weight[has_cost] / log_prob[has_cost]))
        if has_cost.any()
        else 1.0
    )
