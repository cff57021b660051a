"""A decoding graph in two parts, HCL and G, that searches compose as they go."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latflow.decode.added_words import (
    AddedWord,
    Boundaries,
    add_words,
    find_boundaries,
)
from latflow.decode.composition import (
    ADDED,
    ARCS,
    BACK_OFF,
    NOTHING,
    PAIRS,
    Parts,
    Transducer,
    add_pair,
    make_composition,
    no_words,
    potential_of,
    read_only,
)
from latflow.decode.reachable import Reachable, depth_first_words, next_labels
from latflow.decode.search_graph import PackedGraph, SearchGraph, make_search_graph
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.hmm.transducer import HmmCache
from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit
from latflow.lang.lm_arrays import LmArrays, of_grammar

# Pairs and arcs that there is space for: 40 bytes a pair, 24 an arc, which are taken as
# they are filled, and 32 MB for the table. A search that needs more fails. Searches
# that begin when a quarter is full have a graph that begins anew; the old one goes with
# its last search.
_MOST_PAIRS, _MOST_ARCS = 1 << 22, 1 << 24
_FULL = 4
# With words added: there may be a graph for each client.
_WORDS_PAIRS, _WORDS_ARCS = 1 << 20, 1 << 22


@dataclass(frozen=True, eq=False)
class GraphParts:
    """HCL and G.

    Attributes:
        hcl: input labels are transition-ids, output labels words; an arc with the word
            `back_off` is where G may back off.
        grammar: G, with words as output labels, 0 where it backs off.
        back_off: the number of #0; 0 if HCL has none: then G may back off behind each
            word.
        file: where they come from, for messages.
        model: of the same system, where words shall be added.
    """

    hcl: Graph
    grammar: Graph
    back_off: int = 0
    file: str | Path | None = None
    model: TransitionModel | None = None

    @classmethod
    def of(cls, hcl: Graph, grammar: Graph, file: str | Path | None) -> GraphParts:
        """Return the parts; what G has before a back-off is where HCL may back off."""
        marks = np.unique(grammar.ilabel[grammar.olabel == 0])
        is_marked = len(marks) == 1 and bool((hcl.olabel == marks[0]).any())
        return cls(hcl, grammar, int(marks[0]) if is_marked else 0, file)


@dataclass(frozen=True, eq=False)
class _Arcs:
    """Labels and costs of composed arcs; see `LabelledArcs`."""

    ilabel: np.ndarray
    olabel: np.ndarray
    weight: np.ndarray


class ComposedGraph:
    """HCL o G, made as far as searches come; for many threads.

    Args:
        parts: HCL and G.
        tid_to_pdf: int32[I + 1], pdf of each transition-id; entry 0 is not used.
        most_pairs, most_arcs: that there is space for.

    Attributes:
        num_pdfs: pdfs that it has.

    Raises:
        UserError: HCL and G have no word sequence in common; G has a state with two
            arcs of a word or two back-off arcs; HCL does not fit the model; or words
            cannot be added to it.
    """

    def __init__(
        self,
        parts: GraphParts,
        tid_to_pdf: np.ndarray,
        *,
        most_pairs: int = _MOST_PAIRS,
        most_arcs: int = _MOST_ARCS,
    ) -> None:
        hcl, back_off = parts.hcl, parts.back_off
        if not back_off:
            hcl, back_off = let_words_back_off(hcl)
        words = np.where(hcl.olabel == back_off, 0, hcl.olabel).astype(np.int32)
        label_of, last, num_known = _number_words(hcl, words, parts.grammar)
        self._boundaries: Boundaries | None = None
        labels = np.where(hcl.olabel == back_off, BACK_OFF, label_of[words])
        reachable = _reachable(hcl, labels, last)
        lm, end = of_grammar(parts.grammar, parts.file)
        lm = LmArrays(*read_only(*_relabelled(lm, _labels_in(lm, end, label_of, last))))
        if parts.model is not None:
            found = find_boundaries(hcl, labels, reachable, num_known, parts.model)
            order = np.argsort(np.append(hcl.sources(), found.state), kind="stable")
            hcl = _with_arcs(hcl, found)
            labels = np.append(labels, np.full(len(found.state), ADDED))[order]
            words = np.append(words, found.phone)[order].astype(np.int32)
            reachable = _reachable(hcl, labels, last)
            self._boundaries = found
        packed = make_search_graph(hcl, tid_to_pdf)
        at = packed.origin
        label, transition_id, word, set_of, begin, ranges, backs_off, adds = read_only(
            labels[at].astype(np.int32), hcl.ilabel[at], words[at], *reachable
        )
        sums = _sums(lm)
        sums, any_word, end_label = read_only(
            sums, _any_word(lm, sums), np.array([last], np.int64)
        )
        self._parts = Parts(
            Transducer(
                *(packed.states, packed.arcs, label, transition_id, word),
                *(packed.final, set_of),
            ),
            no_words(),
            *(begin, ranges, backs_off, adds),
            *(lm, sums, any_word, end_label),
        )
        self.num_pdfs = int(packed.arcs["pdf"].max(initial=0)) + 1
        self._start = hcl.start, parts.grammar.start
        self._has_cycle = packed.has_epsilon_cycle
        self._sizes = most_pairs, most_arcs
        self._current = self._begin()
        if not potential_of(self._current.packed.composition, *self._start) < np.inf:
            raise UserError(
                "HCL and G have no word in common to begin with",
                file=parts.file,
                remedy="make both from the same words.txt",
            )

    def with_words(self, words: Sequence[AddedWord], hmms: HmmCache) -> ComposedGraph:
        """Return the graph with words that it lacks; what both have is not copied.

        Args:
            words: to be added; G backs off to the empty history for them.
            hmms: of the model that the graph was made with.

        Raises:
            UserError: phones depend on those that follow, or are none of the model's.
        """
        assert self._boundaries is not None, "made of parts without a model"
        added = add_words(self._parts, self._boundaries, words, hmms)
        graph = copy(self)
        graph._sizes = _WORDS_PAIRS, _WORDS_ARCS
        graph._parts = self._parts._replace(added=added)
        graph._current = graph._begin()
        return graph

    def current(self) -> PackedGraph:
        """Return the graph for a search that begins now; for one thread at a time."""
        counts = self._current.packed.composition.counts
        most_pairs, most_arcs = self._sizes
        if _FULL * counts[PAIRS] > most_pairs or _FULL * counts[ARCS] > most_arcs:
            self._current = self._begin()
        return self._current

    def _begin(self) -> PackedGraph:
        """Return a graph with its start state alone, whose potential is 0.

        So complete paths cost what they cost in HCLG.
        """
        made = make_composition(self._parts, *self._sizes)
        add_pair(made, *self._start, 0.0)
        states, arcs, origin, final = read_only(
            made.states, made.arcs, made.origin, made.final
        )
        packed = SearchGraph(0, states, arcs, origin, final, self._has_cycle, made)
        labelled = _Arcs(made.transition_id, made.word, made.arcs["weight"])
        return PackedGraph(labelled, packed)


def let_words_back_off(hcl: Graph) -> tuple[Graph, int]:
    """Return HCL with arcs where G may back off, and their word.

    They lead from copies of the start and of the states that words lead to: there a
    path has come with a word, and backs off before anything else.
    """
    back_off = int(hcl.olabel.max(initial=0)) + 1
    source = hcl.sources()
    is_word = hcl.olabel > 0
    ends = np.unique(np.append(hcl.next_state[is_word], hcl.start)).astype(np.int32)
    copy_of = np.full(hcl.num_states, -1, np.int32)
    copy_of[ends] = hcl.num_states + np.arange(len(ends), dtype=np.int32)
    first = np.array(hcl.arcs)
    first["next_state"][is_word] = copy_of[hcl.next_state[is_word]]
    is_copied = copy_of[source] >= 0
    onwards = np.zeros(len(ends), ARC)
    onwards["olabel"], onwards["next_state"] = back_off, ends
    arcs = np.concatenate([first, first[is_copied], onwards])
    sources = np.concatenate([source, copy_of[source[is_copied]], copy_of[ends]])
    final = np.concatenate([hcl.final, hcl.final[ends]])
    start = int(copy_of[hcl.start])
    return Graph.from_arc_list(start, sources, arcs, final), back_off


def _with_arcs(hcl: Graph, boundaries: Boundaries) -> Graph:
    """Return HCL with an epsilon arc where added words may begin, behind other arcs.

    It leads nowhere, to a new state: the composition leads it to the words.
    """
    arcs = np.zeros(len(boundaries.state), ARC)
    arcs["weight"], arcs["next_state"] = boundaries.cost, hcl.num_states
    sources = np.append(hcl.sources(), boundaries.state)
    return Graph.from_arc_list(
        hcl.start,
        sources,
        np.concatenate([hcl.arcs, arcs]),
        np.append(hcl.final, np.float32(np.inf)),
    )


def _reachable(hcl: Graph, labels: np.ndarray, last: int) -> Reachable:
    """Return the labels that can come next from the states of HCL."""
    return next_labels(
        *(hcl.arc_begin, np.asarray(hcl.next_state), labels.astype(np.int32)),
        *(np.isfinite(hcl.final), last),
    )


def _number_words(
    hcl: Graph, words: np.ndarray, grammar: Graph
) -> tuple[np.ndarray, int, int]:
    """Number the words of HCL, those that G lacks last.

    Returns:
        (label of each word, NOTHING for those that HCL lacks; how many HCL has; how
        many of them G has, too).
    """
    by_label = depth_first_words(
        hcl.start, hcl.arc_begin, np.asarray(hcl.next_state), words
    )
    is_known = np.isin(by_label, grammar.olabel)
    by_label = np.concatenate([by_label[is_known], by_label[~is_known]])
    label_of = np.full(int(words.max(initial=0)) + 1, NOTHING, np.int32)
    label_of[by_label] = np.arange(len(by_label), dtype=np.int32)
    return label_of, len(by_label), int(is_known.sum())


def _labels_in(lm: LmArrays, end: int, label_of: np.ndarray, last: int) -> np.ndarray:
    """Return the labels of the arcs of G: `last` for its end; NOTHING without one."""
    known = lm.label < len(label_of)
    label = np.full(len(lm.label), NOTHING, np.int32)
    label[known] = label_of[lm.label[known]]
    label[lm.label == end] = last
    return label


def _relabelled(lm: LmArrays, label: np.ndarray) -> LmArrays:
    """Return G with other labels on its arcs, without those that have NOTHING."""
    num_states = len(lm.backoff_state)
    source = np.repeat(np.arange(num_states), np.diff(lm.arc_begin))
    order = np.lexsort((label, source))
    order = order[label[order] != NOTHING]
    counts = np.bincount(source[order], minlength=num_states)
    return lm._replace(
        arc_begin=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        label=label[order],
        cost=lm.cost[order],
        next_state=lm.next_state[order],
    )


def _sums(lm: LmArrays) -> np.ndarray:
    """Return `Parts.sums`: of each state by itself, so that small ones are not lost."""
    sums = np.exp(-lm.cost.astype(np.float64))
    _accumulate(lm.arc_begin, sums)
    return sums


@njit(cache=True, nogil=True)
def _accumulate(begin: np.ndarray, values: np.ndarray) -> None:
    """Replace the values of each state by their running sums."""
    for state in range(len(begin) - 1):
        for i in range(begin[state] + 1, begin[state + 1]):
            values[i] += values[i - 1]


def _any_word(lm: LmArrays, sums: np.ndarray) -> np.ndarray:
    """Return `Parts.any_word`."""
    own = np.zeros(len(lm.backoff_state))
    has_arcs = np.flatnonzero(np.diff(lm.arc_begin))
    own[has_arcs] = sums[lm.arc_begin[has_arcs + 1] - 1]
    any_word = own.copy()
    state, cost = lm.backoff_state.copy(), lm.backoff_cost.astype(np.float64)
    while (backs_off := state >= 0).any():  # as often as the longest history is long
        shorter = state[backs_off]
        any_word[backs_off] += np.exp(-cost[backs_off]) * own[shorter]
        cost[backs_off] += lm.backoff_cost[shorter]
        state[backs_off] = lm.backoff_state[shorter]
    return any_word
