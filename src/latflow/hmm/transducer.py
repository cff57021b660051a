"""H, the transducer from transition-ids to phones in context, and its self-loops.

Graphs are built without self-loops: so they stay small while they are composed,
determinized and minimized. `add_self_loops` puts them in at the end, *reordered*: a
state's self-loop follows the arc that enters it, so that an arc carries the pdf of the
HMM state it leaves and the loop of the same HMM state stands on its target.

Weights are costs (negative natural logs).

Source: Kaldi `hmm/hmm-utils.cc`, `fstext/fstext-utils-inl.h` (`MakeLoopFst`,
`MakePrecedingInputSymbolsSameClass`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import NamedTuple

import numpy as np

from latflow.errors import UserError
from latflow.fst.determinize import LINK, Int, Links
from latflow.fst.graph import Graph, incoming, state_records
from latflow.hmm.topology import NO_PDF
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.jit import njit

Arc = tuple[int, int, float, int]  # source, transition-id (0: none), cost, target


@dataclass(frozen=True)
class PhoneHmm:
    """The HMM of a phone in context, without self-loops, as an acceptor.

    Attributes:
        num_states: emitting states and the final one, which is the last; 0 is the
            first.
        arcs: (source, transition-id, cost, target), by source.
    """

    num_states: int
    arcs: tuple[Arc, ...]

    @cached_property
    def shares_start(self) -> bool:
        """Return whether the one arc of state 0 may leave another graph's state.

        So it is if no arc comes back to state 0.
        """
        leaving = [arc for arc in self.arcs if arc[0] == 0]
        return len(leaving) == 1 and all(arc[3] != 0 for arc in self.arcs)


@dataclass
class HmmCache:
    """The distinct HMMs behind phones in context: few, where contexts are many.

    Two contexts share an HMM if the phone and its pdfs are the same.

    Args:
        tree: gives the pdfs of a phone in context.
        model: of the same system.
        transition_scale: factor on the log-probabilities of arcs (those of self-loops
            left aside); 0 leaves them out.

    Attributes:
        hmms: the HMMs made so far.
    """

    tree: ContextDependency
    model: TransitionModel
    transition_scale: float = 1.0
    hmms: list[PhoneHmm] = field(default_factory=list)
    _of_window: dict[tuple[int, ...], int] = field(default_factory=dict)
    _of_pdfs: dict[tuple[int, ...], int] = field(default_factory=dict)

    @cached_property
    def _costs(self) -> np.ndarray:
        """Cost of each transition-id, float32[I + 1]."""
        log_prob = self.model.log_prob_ignoring_self_loops()
        return -np.float32(self.transition_scale) * log_prob

    def index(self, window: Sequence[int]) -> int:
        """Return the number in `hmms` of a phone in context.

        Args:
            window: phones, as `ContextDependency.pdf` takes them.

        Raises:
            UserError: the tree or the model does not know this phone in context.
        """
        key = tuple(window)
        number = self._of_window.get(key)
        if number is None:
            number = self._of_window[key] = self._find(key)
        return number

    def _find(self, window: tuple[int, ...]) -> int:
        phone = window[self.tree.central_position]
        classes = self.model.topology.num_pdf_classes(phone)
        pdfs = [self.tree.pdf(window, pdf_class) for pdf_class in range(classes)]
        number = self._of_pdfs.setdefault((phone, *pdfs), len(self.hmms))
        if number == len(self.hmms):
            self.hmms.append(self._make(phone, pdfs))
        return number

    def _make(self, phone: int, pdfs: list[int]) -> PhoneHmm:
        """Return the HMM of a phone whose pdf-classes have these pdfs.

        Source: Kaldi `GetHmmAsFst`.
        """
        states = self.model.topology.states(phone)
        arcs: list[Arc] = []
        for number, state in enumerate(states):
            first = 0
            if state.pdf_class != NO_PDF:
                entry = self.model.state_of(
                    phone, number, pdfs[state.pdf_class], pdfs[state.loop_pdf_class]
                )
                first = int(self.model.first_id[entry])
            for arc, (target, probability) in enumerate(state.transitions):
                if target == number:
                    continue
                label = first + arc if first else 0
                cost = float(self._costs[label]) if label else -log(probability)
                arcs.append((number, label, cost, target))
        return PhoneHmm(len(states), tuple(arcs))


def compose_hmms(
    graph: Graph, windows: Sequence[Sequence[int]], cache: HmmCache
) -> tuple[Graph, list[int]]:
    """Compose H with C o L o G: each arc becomes the HMM of its phone in context.

    H has one state from which the HMM of each label starts and to which it returns, so
    that the states of a composition are known: behind an arc come those of its HMM,
    whose end is the arc's target. Arcs of one HMM and one target share all but the arc
    that enters.

    Args:
        graph: C o L o G; without self-loops as is the result.
        windows: what its input labels stand for: a window of phones; one number <= 0
            (minus a phone symbol) for a disambiguation symbol; label 0 is epsilon.
        cache: of the tree and the model.

    Returns:
        (H o C o L o G, the states of the graph first; its disambiguation symbols on
        the input side, which are the numbers that follow the last transition-id).

    Raises:
        UserError: tree, model and labels do not fit each other.

    Source: Kaldi `GetHTransducer`, `MakeLoopFst`, and `fsttablecompose`.
    """
    symbols: list[int] = []
    hmm_of = np.full(len(windows), -1, np.int32)
    symbol_of = np.zeros(len(windows), np.int32)
    for label, window in enumerate(windows):
        if label and len(window) == 1 and window[0] <= 0:
            symbols.append(cache.model.num_transition_ids + 1 + len(symbols))
            symbol_of[label] = symbols[-1]
        elif label:
            hmm_of[label] = cache.index(window)
    begin, arcs = _put_hmms(
        graph.arc_begin, graph.arcs, hmm_of, symbol_of, _HmmTable.of(cache.hmms)
    )
    final = np.full(len(begin) - 1, np.inf, np.float32)
    final[: graph.num_states] = graph.final
    return Graph(graph.start, state_records(begin, final, arcs), arcs), symbols


class _HmmTable(NamedTuple):
    """HMMs as arrays, without what enters them.

    Attributes:
        shares_start: whether the one arc of state 0 may leave another graph's state.
        num_states: int64[H], without the last, and without state 0 if that is so.
        begin: int64[H + 1], arcs of an HMM.
        arcs: LINK, by source; those of state 0 are there in any case.
    """

    shares_start: np.ndarray
    num_states: np.ndarray
    begin: np.ndarray
    arcs: Links

    @classmethod
    def of(cls, hmms: Sequence[PhoneHmm]) -> _HmmTable:
        """Return the table of HMMs."""
        shares_start = np.array([hmm.shares_start for hmm in hmms], np.int64)
        sizes = np.array([hmm.num_states for hmm in hmms], np.int64)
        begin = np.zeros(len(hmms) + 1, np.int64)
        np.cumsum([len(hmm.arcs) for hmm in hmms], out=begin[1:])
        rows = [
            (source, label, target, cost)
            for hmm in hmms
            for source, label, cost, target in hmm.arcs
        ]
        return cls(shares_start, sizes - 1 - shares_start, begin, np.array(rows, LINK))


@njit(cache=True, nogil=True)
def _put_hmms(
    arc_begin: np.ndarray,
    arcs: Links,
    hmm_of: np.ndarray,
    symbol_of: np.ndarray,
    hmms: _HmmTable,
) -> tuple[np.ndarray, Links]:
    """Put the states of HMMs behind arcs.

    Args:
        arc_begin: int64[S + 1].
        arcs: ARC[A].
        hmm_of: int32, of each input label its HMM, or -1.
        symbol_of: int32, of each input label what becomes of it if it has no HMM.
        hmms: the HMMs.

    Returns:
        (arc_begin, ARC[B]) of the S states and the new ones behind them.
    """
    leader = _leaders(arc_begin, arcs, hmm_of, len(hmms.num_states))
    state, used = len(arc_begin) - 1, len(arcs)
    num_states, num_arcs = state, used
    for n in range(len(arcs)):
        if leader[n] == n:
            hmm = hmm_of[arcs[n]["ilabel"]]
            num_states += hmms.num_states[hmm]
            num_arcs += hmms.begin[hmm + 1] - hmms.begin[hmm] - hmms.shares_start[hmm]
    begin = np.empty(num_states + 1, np.int64)
    begin[: state + 1] = arc_begin
    out = np.empty(num_arcs, arcs.dtype)
    first = np.empty(len(arcs), np.int32)  # the first state of the arc's HMM
    for n in range(len(arcs)):
        out[n] = arcs[n]
        hmm = hmm_of[arcs[n]["ilabel"]]
        if hmm < 0:
            out[n]["ilabel"] = symbol_of[arcs[n]["ilabel"]]
            continue
        first[n] = state
        if leader[n] == n:
            used = _write_hmm(hmms, hmm, arcs[n]["next_state"], state, used, begin, out)
            state += hmms.num_states[hmm]
        else:
            first[n] = first[leader[n]]
        out[n]["ilabel"] = 0
        out[n]["next_state"] = first[n]
        if hmms.shares_start[hmm]:
            entry = hmms.arcs[hmms.begin[hmm]]
            out[n]["ilabel"] = entry["label"]
            out[n]["weight"] += entry["weight"]
            out[n]["next_state"] += entry["target"] - 1
            if entry["target"] > hmms.num_states[hmm]:
                out[n]["next_state"] = arcs[n]["next_state"]
    return begin, out


@njit(cache=True, nogil=True)
def _leaders(
    arc_begin: np.ndarray, arcs: Links, hmm_of: np.ndarray, num_hmms: int
) -> np.ndarray:
    """Return the first arc with an arc's HMM and target, -1 without HMM; int32[A]."""
    leader = np.full(len(arcs), -1, np.int32)
    of_hmm = np.empty(num_hmms, np.int32)
    used_by = np.full(num_hmms, -1, np.int32)  # the last target of each HMM
    into_begin, into, _ = incoming(arc_begin, arcs["next_state"])
    for target in range(len(arc_begin) - 1):
        for n in range(into_begin[target], into_begin[target + 1]):
            hmm = hmm_of[arcs[into[n]]["ilabel"]]
            if hmm >= 0:
                if used_by[hmm] != target:
                    used_by[hmm], of_hmm[hmm] = target, into[n]
                leader[into[n]] = of_hmm[hmm]
    return leader


@njit(cache=True, nogil=True)
def _write_hmm(
    hmms: _HmmTable,
    hmm: Int,
    target: Int,
    first: Int,
    used: Int,
    begin: np.ndarray,
    out: Links,
) -> Int:
    """Write what leaves the states of an HMM; returns the new number of arcs.

    Args:
        hmms: all HMMs.
        hmm: the one.
        target: where its end leads to.
        first: number of its first state.
        used: number of arcs so far.
        begin: int64[S + 1]; filled for these states.
        out: ARC[B]; likewise.
    """
    offset = hmms.shares_start[hmm]
    at, end = hmms.begin[hmm] + offset, hmms.begin[hmm + 1]
    for state in range(hmms.num_states[hmm]):
        begin[first + state] = used
        while at < end and hmms.arcs[at]["source"] == state + offset:
            out[used]["ilabel"], out[used]["olabel"] = hmms.arcs[at]["label"], 0
            out[used]["weight"] = hmms.arcs[at]["weight"]
            inner = hmms.arcs[at]["target"] - offset
            is_end = inner == hmms.num_states[hmm]
            out[used]["next_state"] = target if is_end else first + inner
            used += 1
            at += 1
    begin[first + hmms.num_states[hmm]] = used
    return used


def add_self_loops(
    graph: Graph,
    model: TransitionModel,
    *,
    self_loop_scale: float = 0.1,
    disambig_tids: Sequence[int] = (),
) -> Graph:
    """Put in the self-loops of HMM states, each behind the arc that enters its state.

    A state that is entered by arcs of several HMM states is preceded by one new state
    for each, with an epsilon arc to the old one. The arcs and final costs of a state
    with a loop get the cost of leaving it.

    Args:
        graph: input labels are transition-ids that are not self-loops, 0, and
            `disambig_tids`.
        model: the transition model.
        self_loop_scale: factor on the log-probabilities of staying and of leaving; 0
            leaves them out.
        disambig_tids: disambiguation symbols that are still there.

    Returns:
        The new graph; states of the old one keep their numbers.

    Raises:
        UserError: the graph has self-loops already, or labels that are not
            transition-ids of this model.

    Source: Kaldi `AddSelfLoops` with reorder = true.
    """
    entering = _transition_states(graph, model, disambig_tids)
    next_state, new_class = _split_by_class(graph, entering)
    num_old, num_new = graph.num_states, len(new_class)

    class_of = np.full(num_old + num_new, -1, np.int64)
    class_of[graph.start] = 0
    class_of[next_state] = entering
    class_of[num_old:] = new_class
    has_loop = class_of > 0
    states = np.where(has_loop, class_of, 0)
    leaving = -model.non_self_loop_log_prob[states] * np.float32(self_loop_scale)
    leaving[~has_loop] = 0.0

    loops = np.where(has_loop, model.self_loop[states], 0).astype(np.int32)
    staying = -model.log_prob[loops] * np.float32(self_loop_scale)
    final = np.full(num_old + num_new, np.inf, np.float32)
    final[:num_old] = graph.final
    final += leaving
    begin, arcs = _write_loops(
        graph.arc_begin,
        graph.arcs,
        next_state,
        _bridge_targets(graph, next_state, num_new),
        loops,
        leaving.astype(np.float32),
        staying.astype(np.float32),
    )
    return Graph(graph.start, state_records(begin, final, arcs), arcs)


@njit(cache=True, nogil=True)
def _write_loops(
    arc_begin: np.ndarray,
    arcs: Links,
    next_state: np.ndarray,
    bridges: np.ndarray,
    loops: np.ndarray,
    leaving: np.ndarray,
    staying: np.ndarray,
) -> tuple[np.ndarray, Links]:
    """Write the arcs of old states, one arc for each new one, and self-loops.

    Args:
        arc_begin: int64[S + 1].
        arcs: ARC[A].
        next_state: int64[A], where they lead now.
        bridges: int64[N], where the new states lead.
        loops: int32[S + N], transition-ids of self-loops, 0 for none.
        leaving, staying: float32[S + N], costs.

    Returns:
        (arc_begin, int64[S + N + 1]; ARC[B]).
    """
    num_old = len(arc_begin) - 1
    begin = np.zeros(len(loops) + 1, np.int64)
    out = np.empty(len(arcs) + len(bridges) + (loops > 0).sum(), arcs.dtype)
    used = 0
    for state in range(len(loops)):
        if state < num_old:
            for n in range(arc_begin[state], arc_begin[state + 1]):
                out[used] = arcs[n]
                out[used]["weight"] += leaving[state]
                out[used]["next_state"] = next_state[n]
                used += 1
        else:
            out[used]["ilabel"] = out[used]["olabel"] = 0
            out[used]["weight"] = leaving[state]
            out[used]["next_state"] = bridges[state - num_old]
            used += 1
        if loops[state] > 0:
            out[used]["ilabel"], out[used]["olabel"] = loops[state], 0
            out[used]["weight"] = staying[state]
            out[used]["next_state"] = state
            used += 1
        begin[state + 1] = used
    return begin, out


def _transition_states(
    graph: Graph, model: TransitionModel, disambig_tids: Sequence[int]
) -> np.ndarray:
    """Return transition-state behind each arc's input label, 0 for none, int32[A]."""
    labels = np.array(graph.ilabel)
    is_id = (labels > 0) & (labels <= model.num_transition_ids)
    if not (is_id | (labels == 0) | np.isin(labels, list(disambig_tids))).all():
        raise UserError(
            "the graph has input labels that are not transition-ids of the model",
            remedy="use the graph and the model of one system",
        )
    labels[~is_id] = 0
    if model.is_self_loop[labels[is_id]].any():
        raise UserError("the graph has self-loops already")
    return np.where(is_id, model.state[labels], 0)


def _split_by_class(
    graph: Graph, entering: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lead arcs of different classes into one state by way of new states.

    Args:
        graph: the graph.
        entering: class of each arc, int[A].

    Returns:
        (next_state of the arcs, int64[A]; class of each new state, in the order of
        their numbers).
    """
    least = np.full(graph.num_states, np.iinfo(np.int64).max)
    most = np.full(graph.num_states, -1)
    least[graph.start] = most[graph.start] = 0
    next_state = graph.next_state.astype(np.int64)
    np.minimum.at(least, next_state, entering)
    np.maximum.at(most, next_state, entering)
    is_mixed = least < most
    moved = np.flatnonzero((graph.ilabel != 0) & is_mixed[next_state])
    span = int(entering.max(initial=0)) + 1
    keys = next_state[moved] * span + entering[moved]
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(unique), np.int64)  # new states are numbered as they are met
    rank[np.argsort(first)] = np.arange(len(unique))
    next_state[moved] = graph.num_states + rank[inverse]
    return next_state, unique[np.argsort(first)] % span


def _bridge_targets(graph: Graph, next_state: np.ndarray, num_new: int) -> np.ndarray:
    """Return the old state behind each new one, int64[num_new]."""
    targets = np.zeros(num_new, np.int64)
    is_moved = next_state >= graph.num_states
    targets[next_state[is_moved] - graph.num_states] = graph.next_state[is_moved]
    return targets
