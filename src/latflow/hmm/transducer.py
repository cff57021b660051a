"""H, the transducer from transition-ids to phones in context, and its self-loops.

Graphs are built without self-loops: so they stay small while they are composed,
determinized and minimized. `add_self_loops` puts them in at the end, *reordered*: a
state's self-loop follows the arc that enters it, so that an arc carries the pdf of the
HMM state it leaves and the loop of the same HMM state stands on its target.

Public: `PhoneHmm`, `HmmCache`, `h_transducer`, `add_self_loops`. Weights are costs
(negative natural logs).

Source: Kaldi `hmm/hmm-utils.cc`, `fstext/fstext-utils-inl.h` (`MakeLoopFst`,
`MakePrecedingInputSymbolsSameClass`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log

import kaldifst
import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.hmm.topology import NO_PDF
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency

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


def h_transducer(
    ilabels: Sequence[Sequence[int]],
    tree: ContextDependency,
    model: TransitionModel,
    *,
    transition_scale: float = 1.0,
    cache: HmmCache | None = None,
) -> tuple[kaldifst.StdVectorFst, list[int]]:
    """Make H: from transition-ids to the input labels of C o L o G; no self-loops.

    H has one state from which the HMM of each label starts and to which it returns.

    Args:
        ilabels: what each label stands for: a window of phones; one number <= 0 (minus
            a phone symbol) for a disambiguation symbol; label 0 is epsilon.
        tree: the tree.
        model: the transition model of the same system.
        transition_scale: as in `HmmCache`.
        cache: of this tree, model and scale, to make several graphs with.

    Returns:
        (H, olabel-sorted; its disambiguation symbols on the input side, which are the
        numbers that follow the last transition-id).

    Raises:
        UserError: tree, model and labels do not fit each other.

    Source: Kaldi `GetHTransducer`, `MakeLoopFst`.
    """
    cache = cache or HmmCache(tree, model, transition_scale)
    loop = _LoopBuilder()
    disambig_tids: list[int] = []
    for label, window in enumerate(ilabels):
        if label == 0:
            continue
        if len(window) == 1 and window[0] <= 0:
            disambig_tids.append(model.num_transition_ids + 1 + len(disambig_tids))
            loop.add_symbol(label, disambig_tids[-1])
        else:
            number = cache.index(window)
            loop.add_hmm(label, number, cache.hmms[number])
    return loop.graph().to_fst(), disambig_tids


class _LoopBuilder:
    """Collects HMMs around one state, 0."""

    def __init__(self) -> None:
        self.num_states = 1
        self.sources: list[int] = []
        self.arcs: list[tuple[int, int, float, int]] = []
        self.entries: dict[int, tuple[int, float, int]] = {}

    def _add(self, source: int, arc: tuple[int, int, float, int]) -> None:
        self.sources.append(source)
        self.arcs.append(arc)

    def add_symbol(self, label: int, symbol: int) -> None:
        """Add a path of one symbol."""
        self._add(0, (symbol, label, 0.0, self.num_states))
        self._add(self.num_states, (0, 0, 0.0, 0))
        self.num_states += 1

    def add_hmm(self, label: int, number: int, hmm: PhoneHmm) -> None:
        """Add a label for an HMM, and the HMM itself if it is a new one."""
        if number not in self.entries:
            self.entries[number] = self._insert(hmm)
        ilabel, cost, target = self.entries[number]
        self._add(0, (ilabel, label, cost, target))

    def _insert(self, hmm: PhoneHmm) -> tuple[int, float, int]:
        """Add the states of an HMM; returns the arc that leads in (label aside)."""
        entry = (0, 0.0, self.num_states)
        first = self.num_states - hmm.shares_start
        self.num_states = first + hmm.num_states
        for source, label, cost, target in hmm.arcs:
            if source == 0 and hmm.shares_start:
                entry = (label, cost, first + target)
            else:
                self._add(first + source, (label, 0, cost, first + target))
        self._add(self.num_states - 1, (0, 0, 0.0, 0))
        return entry

    def graph(self) -> Graph:
        """Return all that was added."""
        final = np.full(self.num_states, np.inf, np.float32)
        final[0] = 0.0
        return Graph.from_arc_list(
            0, np.array(self.sources, np.int64), np.array(self.arcs, ARC), final
        )


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
        graph: input labels are transition-ids that are no self-loops, 0, and
            `disambig_tids`.
        model: the transition model.
        self_loop_scale: factor on the log-probabilities of staying and of leaving; 0
            leaves them out.
        disambig_tids: disambiguation symbols that are still there.

    Returns:
        The new graph; states of the old one keep their numbers.

    Raises:
        UserError: the graph has self-loops already, or labels that are no
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

    loops = model.self_loop[states]
    looping = np.flatnonzero(has_loop & (loops > 0))
    sources = np.concatenate(
        [graph.sources(), np.arange(num_old, num_old + num_new), looping]
    )
    arcs = np.zeros(len(sources), ARC)
    kept, bridges = arcs[: graph.num_arcs], arcs[graph.num_arcs :][:num_new]
    kept[:] = graph.arcs
    kept["next_state"] = next_state
    bridges["next_state"] = _bridge_targets(graph, next_state, num_new)
    arcs["weight"] += leaving[sources]
    loop_arcs = arcs[graph.num_arcs + num_new :]
    loop_arcs["ilabel"] = loops[looping]
    loop_arcs["weight"] = -model.log_prob[loops[looping]] * np.float32(self_loop_scale)
    loop_arcs["next_state"] = looping
    final = np.full(num_old + num_new, np.inf, np.float32)
    final[:num_old] = graph.final
    final += leaving
    return Graph.from_arc_list(graph.start, sources, arcs, final)


def _transition_states(
    graph: Graph, model: TransitionModel, disambig_tids: Sequence[int]
) -> np.ndarray:
    """Return transition-state behind each arc's input label, 0 for none, int32[A]."""
    labels = np.array(graph.ilabel)
    is_id = (labels > 0) & (labels <= model.num_transition_ids)
    if not (is_id | (labels == 0) | np.isin(labels, list(disambig_tids))).all():
        raise UserError(
            "the graph has input labels that are no transition-ids of the model",
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
