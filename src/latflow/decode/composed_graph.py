"""A decoding graph in two parts, HCL and G, that searches compose as they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from latflow.decode.added_words import AddedWord, add_words
from latflow.decode.composed_lm import ComposedLm, compose_lm, with_sums
from latflow.decode.composition import ARCS, PAIRS, add_pair, make_composition
from latflow.decode.parts import (
    ADDED,
    BACK_OFF,
    NOTHING,
    Parts,
    Phrases,
    Transducer,
    no_phrases,
    no_words,
    read_only,
)
from latflow.decode.potentials import potential_of
from latflow.decode.reachable import Reachable, depth_first_words, next_labels, spans
from latflow.decode.search_graph import PackedGraph, SearchGraph, make_search_graph
from latflow.decode.word_boundaries import Boundaries, find_boundaries
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.hmm.transducer import HmmCache
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.grammar import UNKNOWN_WORD
from latflow.lang.lm_arrays import LmArrays, find_arc
from latflow.lang.phrases import phrase_model
from latflow.lang.word_class import empty_history, rare_words, with_class

# Pairs and arcs that there is space for: 40 bytes a pair, 24 an arc, which are taken as
# they are filled, and 32 MB for the table. A search that needs more fails. Searches
# that begin when a quarter is full have a new graph; the old one goes with
# its last search.
_MOST_PAIRS, _MOST_ARCS = 1 << 22, 1 << 24
_FULL = 4
# With parts of a session's own: there may be a graph for each client.
_OWN_PAIRS, _OWN_ARCS = 1 << 20, 1 << 22
_RARE = 0.5  # share of the words of G that count as rare
_MOST_CLASSES = 8  # language models with classes that are kept


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
        sentence_end: a word of HCL's arcs without input label behind which another
            sentence begins; 0 if there are none.
    """

    hcl: Graph
    grammar: Graph
    back_off: int = 0
    file: str | Path | None = None
    model: TransitionModel | None = None
    sentence_end: int = 0

    @classmethod
    def of(
        cls,
        hcl: Graph,
        grammar: Graph,
        file: str | Path | None,
        sentence_end: int = 0,
    ) -> GraphParts:
        """Return the parts; what G has before a back-off is where HCL may back off."""
        marks = np.unique(grammar.ilabel[grammar.olabel == 0])
        is_marked = len(marks) == 1 and bool((hcl.olabel == marks[0]).any())
        back_off = int(marks[0]) if is_marked else 0
        return cls(hcl, grammar, back_off, file, sentence_end=sentence_end)


@dataclass(frozen=True, eq=False)
class SessionParts:
    """What a session has of its own.

    Attributes:
        words: that HCL lacks, or pronounces differently.
        grammar: G, instead of that of the graph, see `latflow.lang.lm_arrays`: it has
            the words.
        phrases: words of each -> its boost, see `latflow.lang.phrases`.
    """

    words: Sequence[AddedWord] = ()
    grammar: Graph | None = None
    phrases: Mapping[tuple[int, ...], float] = field(default_factory=dict)


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
        is_end = (hcl.olabel == parts.sentence_end) & (hcl.ilabel == 0)
        is_mark = (hcl.olabel == back_off) | is_end
        words = np.where(is_mark, 0, hcl.olabel).astype(np.int32)
        label_of, last, num_known = _number_words(hcl, words, parts.grammar)
        self._boundaries: Boundaries | None = None
        labels = np.where(hcl.olabel == back_off, BACK_OFF, label_of[words])
        if parts.sentence_end:
            labels[is_end] = last
        self._lm = compose_lm(parts.grammar, parts.file, label_of, last)
        self._grammar, self._file, self._unknown = parts.grammar, parts.file, last + 1
        self._label_of, self._last, self._num_known = label_of, last, num_known
        self._classes: dict[
            tuple[tuple[int, ...], ...], tuple[ComposedLm, dict[tuple[int, ...], int]]
        ] = {}
        if parts.model is not None:
            starts = hcl.next_state[labels == last]
            reachable = _reachable(hcl, labels, last)
            found = find_boundaries(
                *(hcl, labels, reachable, num_known, parts.model, starts)
            )
            hcl, labels, words = _with_arcs(hcl, labels, words, found)
            self._boundaries = found
        hcl, labels, words = _back_off_alone(hcl, labels, words)
        reachable = _reachable(hcl, labels, last)
        packed = make_search_graph(hcl, tid_to_pdf)
        at = packed.origin
        label, transition_id, word, set_of, begin, ranges, backs_off, adds = read_only(
            labels[at].astype(np.int32), hcl.ilabel[at], words[at], *reachable
        )
        span, end_label = read_only(spans(reachable), np.array([last], np.int64))
        self._parts = Parts(
            Transducer(
                *(packed.states, packed.arcs, label, transition_id, word),
                *(packed.final, set_of),
            ),
            no_words(),
            *(begin, ranges, backs_off, adds, span),
            *(self._lm.lm, self._lm.sums, self._lm.any_word),
            *(no_phrases(), end_label),
        )
        self.num_pdfs = int(packed.arcs["pdf"].max(initial=0)) + 1
        self._start = hcl.start, parts.grammar.start
        self._has_cycle = packed.has_epsilon_cycle
        self._sizes = most_pairs, most_arcs
        self._current = self._begin()
        if not self._can_begin:
            raise UserError(
                "HCL and G have no word in common to begin with",
                file=parts.file,
                remedy="make both from the same words.txt",
            )

    @property
    def _can_begin(self) -> bool:
        """Whether anything can come first."""
        part, state = self._start
        history = state * len(self._parts.phrases.refund)
        return bool(potential_of(self._parts, part, history) < np.inf)

    def with_parts(self, own: SessionParts, hmms: HmmCache | None) -> ComposedGraph:
        """Return the graph for a session; what graphs have in common is not copied.

        Args:
            own: what the session has of its own.
            hmms: of the model that the graph was made with; None where no words are
                added.

        Raises:
            UserError: phones depend on those that follow, or are none of the model's;
                G accepts no words, or is not deterministic; or it has none
                of the words that the added ones are like.
        """
        graph = copy(self)
        graph._sizes = _OWN_PAIRS, _OWN_ARCS
        label_of = _with_labels(self._label_of, self._last, own)
        labels: np.ndarray | dict[tuple[int, ...], int] = label_of
        composed = self._lm
        if own.grammar is not None:
            composed = compose_lm(own.grammar, None, label_of, self._last)
            graph._start = self._start[0], own.grammar.start
        elif own.words:
            kinds = sorted({word.like for word in own.words})
            composed, labels = self._with_classes(tuple(kinds))
        graph._parts = self._parts._replace(
            lm=composed.lm, sums=composed.sums, any_word=composed.any_word
        )
        if own.words:
            assert self._boundaries is not None, "made of parts without a model"
            assert hmms is not None
            graph._parts = graph._parts._replace(
                added=add_words(graph._parts, self._boundaries, own.words, hmms, labels)
            )
        if own.phrases:
            graph._parts = graph._parts._replace(
                phrases=_phrases(own.phrases, label_of)
            )
        graph._current = graph._begin()
        if not graph._can_begin:
            raise UserError(
                "nothing that the grammar allows can be said with the words of the "
                "package",
                remedy="check its words",
            )
        return graph

    def rare_words(self) -> list[int]:
        """Return the words that are rarest in G without a history, half of them."""
        labels = rare_words(self._lm.lm, 0, self._num_known, _RARE)
        return np.flatnonzero(np.isin(self._label_of, labels)).tolist()

    @cached_property
    def _open_lm(self) -> ComposedLm:
        """Return G with unknown words, which no path of HCL has.

        Made for the first words that may be like them: most processes get none.
        """
        if not (self._grammar.olabel == UNKNOWN_WORD).any():
            return self._lm
        return compose_lm(
            *(self._grammar, self._file, self._label_of, self._last),
            unknown=self._unknown,
        )

    def expects(self, word: int) -> bool:
        """Tell whether G knows where a word, or UNKNOWN_WORD, stands.

        It lists the word behind some history, and without one the word is as probable
        as words in the mean.
        """
        lm, root = self._open_lm.lm, empty_history(self._open_lm.lm)
        if not self.has(word) or (lm.label == self._label(word)).sum() < 2:
            return False
        first, last = int(lm.arc_begin[root]), int(lm.arc_begin[root + 1])
        words = lm.cost[first:last][lm.label[first:last] < self._num_known]
        arc = find_arc(lm, root, self._label(word))
        return bool(np.exp(-lm.cost[arc]) >= np.exp(-words).mean())

    def has(self, word: int) -> bool:
        """Tell whether G lists a word without a history."""
        lm, label = self._open_lm.lm, self._label(word)
        return label != NOTHING and find_arc(lm, empty_history(lm), label) >= 0

    def _label(self, word: int) -> int:
        """Return the label of a word, or of UNKNOWN_WORD."""
        if word == UNKNOWN_WORD:
            return self._unknown
        return int(self._label_of[word]) if word < len(self._label_of) else NOTHING

    def _with_classes(
        self, kinds: tuple[tuple[int, ...], ...]
    ) -> tuple[ComposedLm, dict[tuple[int, ...], int]]:
        """Return G with classes of words, each like some that it has, and their labels.

        What is like one word alone needs no class: it has the n-grams of that word.
        """
        if kinds not in self._classes:
            lm, root = self._open_lm.lm, empty_history(self._open_lm.lm)
            listed = lm.label[lm.arc_begin[root] : lm.arc_begin[root + 1]]
            labels: dict[tuple[int, ...], int] = {}
            for label, like in enumerate(kinds, start=self._unknown + 1):
                known = [*map(self._label, like)] if like else range(self._num_known)
                members = np.intersect1d(known, listed).astype(np.int32)
                if not len(members):
                    raise UserError(
                        "the language model has none of the words that new words are "
                        "like",
                        remedy="name a word that it has",
                    )
                labels[like] = int(members[0]) if len(members) == 1 else label
                if len(members) > 1:
                    lm = with_class(lm, members, label)
            composed = self._open_lm if lm is self._open_lm.lm else with_sums(lm)
            self._classes[kinds] = composed, labels
            while len(self._classes) > _MOST_CLASSES:
                self._classes.pop(next(iter(self._classes)))
        return self._classes[kinds]

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
        part, state = self._start
        add_pair(made, part, state * len(self._parts.phrases.refund), 0.0)
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


def _back_off_alone(
    hcl: Graph, labels: np.ndarray, words: np.ndarray
) -> tuple[Graph, np.ndarray, np.ndarray]:
    """Return HCL where G backs off by epsilon arcs only.

    Determinized HCL has, where a word may begin, an arc for each first phone that backs
    off, too. These arcs get a state of their own behind an epsilon arc: else they would
    be composed for every state of G, not once for those that back off to the same one.

    Args:
        hcl: HCL.
        labels: int32[A], of its arcs.
        words: int32[A], likewise.

    Returns:
        (HCL, labels, words).
    """
    source = hcl.sources()
    moves = (labels == BACK_OFF) & (np.asarray(hcl.ilabel) > 0)
    states = np.unique(source[moves])
    if not len(states):
        return hcl, labels, words
    behind = np.zeros(hcl.num_states, np.int32)
    behind[states] = hcl.num_states + np.arange(len(states), dtype=np.int32)
    onwards = np.zeros(len(states), ARC)
    onwards["next_state"] = behind[states]
    sources = np.append(np.where(moves, behind[source], source), states)
    labels = np.append(np.where(moves, NOTHING, labels), np.full(len(states), BACK_OFF))
    words = np.append(words, np.zeros(len(states), np.int32))
    return _with(hcl, onwards, sources, labels, words, num_states=len(states))


def _with_arcs(
    hcl: Graph, labels: np.ndarray, words: np.ndarray, boundaries: Boundaries
) -> tuple[Graph, np.ndarray, np.ndarray]:
    """Return HCL with an epsilon arc where added words may begin, behind other arcs.

    It leads nowhere, to a new state: the composition leads it to the words. Arguments
    and result are as for `_back_off_alone`.
    """
    arcs = np.zeros(len(boundaries.state), ARC)
    arcs["weight"], arcs["next_state"] = boundaries.cost, hcl.num_states
    sources = np.append(hcl.sources(), boundaries.state)
    labels = np.append(labels, np.full(len(arcs), ADDED))
    words = np.append(words, boundaries.phone)
    return _with(hcl, arcs, sources, labels, words, num_states=1)


def _with(
    hcl: Graph,
    more: np.ndarray,
    sources: np.ndarray,
    labels: np.ndarray,
    words: np.ndarray,
    *,
    num_states: int,
) -> tuple[Graph, np.ndarray, np.ndarray]:
    """Return HCL with more arcs, behind those of their states, and their columns.

    Args:
        hcl: HCL.
        more: arcs.
        sources, labels, words: of HCL's arcs, then of these.
        num_states: to be added; none is final.
    """
    order = np.argsort(sources, kind="stable")
    final = np.append(hcl.final, np.full(num_states, np.inf, np.float32))
    arcs = np.concatenate([hcl.arcs, more])
    graph = Graph.from_arc_list(hcl.start, sources, arcs, final)
    return graph, labels[order], words[order].astype(np.int32)


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


def _with_labels(label_of: np.ndarray, last: int, own: SessionParts) -> np.ndarray:
    """Return the labels of words, with new ones behind `last` for those that HCL lacks.

    Args:
        label_of: int32[words], of the words of HCL.
        last: of the end.
        own: has words, and phrases of words.
    """
    highest = max([len(label_of) - 1, *(word.word for word in own.words)])
    labels = np.full(highest + 1, NOTHING, np.int32)
    labels[: len(label_of)] = label_of
    added = np.unique(np.array([word.word for word in own.words], np.int64))
    added = added[labels[added] == NOTHING] if len(added) else added
    labels[added] = last + 1 + np.arange(len(added), dtype=np.int32)
    return labels


def _phrases(phrases: Mapping[tuple[int, ...], float], label_of: np.ndarray) -> Phrases:
    """Return phrases for compositions; `label_of` has the labels of their words."""
    words = np.unique([word for phrase in phrases for word in phrase])
    words = words[np.argsort(label_of[words], kind="stable")]
    rank = np.zeros(len(label_of), np.int32)
    rank[words] = np.arange(1, len(words) + 1)
    model = phrase_model(
        {tuple(rank[list(p)].tolist()): boost for p, boost in phrases.items()},
        len(words) + 1,
    )
    other = len(words)
    own_label = np.where(rank > 0, rank - 1, other).astype(np.int32)
    refund = np.zeros(model.num_states, np.float32)  # until the root, which gives none
    shorter, cost = model.arrays.backoff_state, model.arrays.backoff_cost
    for n in range(1, len(refund)):  # short beginnings come first
        refund[n] = cost[n] + refund[shorter[n]]
    return Phrases(
        LmArrays(*read_only(*model.arrays)),
        *read_only(own_label, label_of[words].astype(np.int32), refund),
    )
