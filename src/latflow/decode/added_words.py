"""Words that a composed graph gets at run time.

A word may begin where all words may: in a *boundary* state of HCL, from which the next
arcs lead into the lexicon. Such a state is entered with a phone and has the self-loop
of its HMM, so the phone before the word is known. The HMMs of the word follow, each in
the context of the phone before it; behind the last one the path goes on as behind any
word that ends with that phone. Nothing of HCL is copied or changed, so that a few words
take milliseconds.

For models whose phones depend on the phones before them, as those of LF-MMI do: where
they depend on what follows, the last phone of a word would be known too late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from latflow.decode.parts import (
    ADDED,
    ADDED_ALONE,
    BACK_OFF,
    NOTHING,
    STATE_BITS,
    AddedWords,
    Parts,
    Transducer,
    read_only,
)
from latflow.decode.reachable import Reachable
from latflow.decode.search_graph import pack_arcs
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC as FST_ARC
from latflow.hmm.transducer import HmmCache, add_self_loops
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.lexicon import Pronunciation
from latflow.lang.phones import place_markers

_NO_PHONE = 0  # before the first one of an utterance
_MOST_BRIDGES = 8  # epsilon arcs between the end of a word and the next


@dataclass(frozen=True)
class AddedWord:
    """A pronunciation of a word.

    Attributes:
        word: its id.
        phones: ids, with position markers where the phones have them.
        cost: beyond what G has for it, or for its class; negative for a word that is
            expected.
        like: words that it is like; none for the mean of all.
    """

    word: int
    phones: tuple[int, ...]
    cost: float
    like: tuple[int, ...] = ()


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
            found = np.flatnonzero(self.phone == _NO_PHONE)
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
        start = float(self.cost[self.phone == _NO_PHONE].max())
        return start - self.common_cost


# -- boundaries --------------------------------------------------------------------


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
    phone[np.append(sentence_starts, hcl.start)] = _NO_PHONE
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


# -- words -------------------------------------------------------------------------


def pronounced(
    lang: Lang,
    entries: Sequence[Pronunciation],
    *,
    boost: float = 0.0,
    like: Mapping[str, tuple[int, ...]] | None = None,
) -> list[AddedWord]:
    """Return pronunciations in the phones of a model.

    Args:
        lang: has the words, see `Lang.with_words`.
        entries: phones without position markers.
        boost: discount on the cost of each word.
        like: word -> those that it is like, see `AddedWord`.

    Raises:
        UserError: a phone is not among those of the model.
    """
    words, speech, like = [], set(lang.nonsilence_phones), like or {}
    for entry in entries:
        phones = entry.phones
        if lang.word_boundary is not None:
            phones = place_markers(phones)
        for phone, own in zip(entry.phones, phones, strict=True):
            if lang.phone_ids.get(own, 0) not in speech:
                raise UserError(
                    f"word {entry.word}: phone {phone} is not among those of the model",
                    remedy="its phones are in lang/phones.txt of the package",
                )
        cost = -math.log(entry.probability) - boost
        ids = tuple(lang.phone_ids[phone] for phone in phones)
        number = lang.word_ids[entry.word]
        words.append(AddedWord(number, ids, cost, like.get(entry.word, ())))
    return words


def depends_on_phones_before(tree: ContextDependency) -> bool:
    """Return whether phones depend on none but the one before, at most."""
    return (tree.context_width, tree.central_position) in {(1, 0), (2, 1)}


def add_words(
    parts: Parts,
    boundaries: Boundaries,
    words: Sequence[AddedWord],
    hmms: HmmCache,
    labels: np.ndarray | Mapping[tuple[int, ...], int],
) -> AddedWords:
    """Make what HCL gets for words.

    Args:
        parts: HCL and G.
        boundaries: of HCL.
        words: at least one.
        hmms: of the model's phones in context.
        labels: int32[largest word + 1], the label that G has for each; or those of
            classes by what words are like.

    Raises:
        UserError: phones depend on others than the one before; or tree and model don't
            know a phone.
    """
    if not depends_on_phones_before(hmms.tree):
        raise UserError(
            "words can't be added to a model whose phones depend on others than the "
            "phone before",
            remedy="take a network of LF-MMI, or add the words to the lexicon",
        )
    befores = {*boundaries.phone.tolist(), *(word.phones[-1] for word in words)}
    builder = _Builder(parts, boundaries, hmms, sorted(befores))
    is_class = isinstance(labels, Mapping)
    classes = list(labels) if is_class else [None]
    for like in classes:
        members = [word for word in words if like in (None, word.like)]
        builder.begin(members)
        for word in members:
            builder.add(word)
    if is_class:
        used = np.array(list(labels.values()), np.int32)
        return builder.finish(used, None)
    return builder.finish(np.unique(labels[[word.word for word in words]]), labels)


class _Builder:
    """Makes the transducer of added words; its state 0 has no arcs."""

    def __init__(
        self,
        parts: Parts,
        boundaries: Boundaries,
        hmms: HmmCache,
        befores: Sequence[int],
    ) -> None:
        self._parts, self._boundaries, self._hmms = parts, boundaries, hmms
        self._befores = befores  # phones that a word may begin behind
        self._arcs: list[tuple[int, tuple[int, int, float, int]]] = []  # source, ARC
        self._num_states = 1
        self._ends: dict[int, int] = {}  # last phone -> state behind it
        # Of each class: phone before -> state that words begin in; all such states.
        self._entries: list[dict[int, int]] = []
        self._states: list[list[int]] = []
        self._costs: list[float] = []
        # Of each such state of the last class: first phone of a word -> its HMM there.
        self._first_hmms: dict[int, dict[int, int]] = {}

    def begin(self, words: Sequence[AddedWord]) -> None:
        """Add the states that words of a class begin in, one for contexts alike.

        They begin behind words of HCL, and behind one another.
        """
        firsts = {word.phones[0] for word in words}
        state_of: dict[tuple[int, ...], int] = {}
        self._first_hmms, entry_of = {}, {}
        for before in self._befores:
            hmms = {phone: self._hmm(before, phone) for phone in firsts}
            key = tuple(hmms.values())
            if key not in state_of:
                state_of[key] = self._new_state()
                self._first_hmms[state_of[key]] = hmms
            entry_of[before] = state_of[key]
        self._entries.append(entry_of)
        self._states.append(list(self._first_hmms))
        self._costs.append(-np.logaddexp.reduce([-word.cost for word in words]))

    def add(self, word: AddedWord) -> None:
        """Add the states of a pronunciation."""
        first, last = word.phones[0], word.phones[-1]
        if last not in self._ends:
            self._ends[last] = self._new_state()
        rest = self._ends[last]
        # From the last phone back: what follows the first one serves all contexts.
        for i in range(len(word.phones) - 1, 0, -1):
            hmm = self._hmm(word.phones[i - 1], word.phones[i])
            rest, _ = self._put(hmm, rest)
        begun: dict[int, list[tuple[int, int, float, int]]] = {}
        for entry, found in self._first_hmms.items():
            hmm = found[first]
            if hmm not in begun:
                _, begun[hmm] = self._put(hmm, rest)
            for tid, _, cost, target in begun[hmm]:
                row = (tid, word.word, cost + word.cost, target)
                self._arcs.append((entry, row))

    def _hmm(self, before: int, phone: int) -> int:
        """Return the number of the HMM of a phone behind another one."""
        return self._hmms.index((before, phone)[-self._hmms.tree.context_width :])

    def _new_state(self) -> int:
        self._num_states += 1
        return self._num_states - 1

    def _put(
        self, hmm: int, last: int
    ) -> tuple[int, list[tuple[int, int, float, int]]]:
        """Put an HMM before a state; return its first state and the arcs of that."""
        found = self._hmms.hmms[hmm]
        states = [*(self._new_state() for _ in range(found.num_states - 1)), last]
        rows = [
            (states[source], (tid, 0, cost, states[target]))
            for source, tid, cost, target in found.arcs
        ]
        self._arcs += rows
        return states[0], [row for source, row in rows if source == states[0]]

    def finish(self, labels: np.ndarray, label_of: np.ndarray | None) -> AddedWords:
        """Return what was added, with arcs that go on in HCL.

        Args:
            labels: int32[K], that G has for the words, or for their classes.
            label_of: int32[words], label of each word; None for classes.
        """
        final = np.full(self._num_states, np.inf, np.float32)
        final[list(self._ends.values())] = 0.0
        graph = add_self_loops(
            Graph.from_arc_list(
                0,
                np.array([source for source, _ in self._arcs]),
                np.array([arc for _, arc in self._arcs], FST_ARC),
                final,
            ),
            self._hmms.model,
            self_loop_scale=self._boundaries.self_loop_scale,
        )
        entries = np.zeros((len(self._entries), self._befores[-1] + 1), np.int32)
        for number, entry_of in enumerate(self._entries):
            for before, state in entry_of.items():
                entries[number, before] = len(self._parts.hcl.final) + state
        return AddedWords(
            self._pack(graph, label_of),
            *read_only(
                entries,
                labels.astype(np.int32),
                np.array([label_of is None]),
                np.array(self._costs, np.float32),
            ),
        )

    def _pack(self, graph: Graph, label_of: np.ndarray | None) -> Transducer:
        """Return the graph packed; behind each word there are the arcs of HCL.

        G may back off first, to a state with the same arcs.
        """
        hcl, num_states = self._parts.hcl, graph.num_states + len(self._ends)
        final = np.full(num_states, np.inf, np.float32)
        rows = np.zeros(graph.num_arcs, _ROW)
        rows["source"], rows["tid"] = graph.sources(), graph.ilabel
        rows["word"], rows["weight"] = graph.olabel, graph.weight
        rows["target"], rows["label"] = graph.next_state, NOTHING
        if label_of is not None:
            rows["label"] = np.where(rows["word"], label_of[rows["word"]], NOTHING)
        rows["target"] += len(hcl.final)
        all_rows = [rows]
        for backed_off, (phone, state) in enumerate(
            self._ends.items(), start=graph.num_states
        ):
            at, moved = self._boundaries.behind(phone)
            boundary = int(self._boundaries.state[at])
            # The arcs have the cost of leaving the HMM that HCL's state is in.
            more = graph.final[state] - self._boundaries.leaving[at]
            more += self._boundaries.end_cost - moved
            final[[state, backed_off]] = hcl.final[boundary] + more
            found = _rows_of(hcl, boundary, self._hmms.model)
            found["weight"] += more
            found["word"][found["label"] == ADDED] = phone
            back_off = np.zeros(1, _ROW)
            back_off["source"], back_off["label"] = state, BACK_OFF
            back_off["target"] = len(hcl.final) + backed_off
            all_rows.append(back_off)
            for source in (state, backed_off):
                found["source"] = source
                all_rows.append(found.copy())
        start = self._boundaries.state[self._boundaries.phone == _NO_PHONE]
        set_of = np.full(num_states, hcl.set_of[start[0]], np.int32)
        for number, entry_states in enumerate(self._states):
            set_of[entry_states] = ADDED_ALONE - number
        rows = np.concatenate(all_rows)
        rows = rows[np.argsort(rows["source"], kind="stable")]
        begin = np.searchsorted(rows["source"], np.arange(num_states + 1))
        states, arcs, at = pack_arcs(
            begin,
            (rows["tid"].copy(), rows["weight"].copy(), rows["target"].copy()),
            np.ascontiguousarray(self._hmms.model.pdf, np.int32),
            hcl.states,
        )
        columns = (rows[name][at] for name in ("label", "tid", "word"))
        return Transducer(*read_only(states, arcs, *columns, final, set_of))


_ROW = np.dtype(
    [
        ("source", "i8"),
        ("tid", "i4"),
        ("word", "i4"),
        ("weight", "f4"),
        ("target", "i8"),
        ("label", "i4"),
    ]
)


def _rows_of(hcl: Transducer, state: int, model: TransitionModel) -> np.ndarray:
    """Return the arcs of a state of HCL without its self-loop and its back-off."""
    arcs = slice(int(hcl.states["begin"][state]), int(hcl.states["begin"][state + 1]))
    rows = np.zeros(arcs.stop - arcs.start, _ROW)
    rows["tid"], rows["word"] = hcl.transition_id[arcs], hcl.word[arcs]
    rows["weight"], rows["label"] = hcl.arcs["weight"][arcs], hcl.label[arcs]
    rows["target"] = hcl.arcs["code"][arcs] & STATE_BITS
    is_loop = (rows["target"] == state) & (rows["label"] == NOTHING)
    is_loop &= model.is_self_loop[rows["tid"]]
    return rows[~is_loop & (rows["label"] != BACK_OFF)]
