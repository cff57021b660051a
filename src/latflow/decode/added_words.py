"""Words that a composed graph gets at run time.

A word may begin where all words may: in a *boundary* state of HCL, from which the next
arcs lead into the lexicon. Such a state is entered with a phone and has the self-loop
of its HMM, so the phone before the word is known. The HMMs of the word follow, each in
the context of the phone before it; behind the last one the path continues as behind any
word that ends with that phone. Nothing of HCL is copied or changed, so that a few words
take milliseconds.

For models whose phones depend on the phones before them, as those of LF-MMI do: where
they depend on what follows, the last phone of a word would be known too late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from latflow.decode.search_graph import pack_arcs
from latflow.decode.word_boundaries import NO_PHONE, Boundaries
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC as FST_ARC
from latflow.hmm.transducer import HmmCache, add_self_loops
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.lexicon import Pronunciation
from latflow.lang.phones import place_markers

_EXAMPLES = 60  # phones that a message names


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
        boost: discount on the cost of each word; none for another pronunciation of a
            word that G has, which is like itself.
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
                known = {lang.base_phone(number) for number in speech}
                raise UserError(
                    f"word {entry.word}: phone {phone} is not among those of the model",
                    remedy="use its phones: " + " ".join(sorted(known)[:_EXAMPLES]),
                )
        ids = tuple(lang.phone_ids[phone] for phone in phones)
        number, known = lang.word_ids[entry.word], like.get(entry.word, ())
        cost = -math.log(entry.probability) - (0.0 if known == (number,) else boost)
        words.append(AddedWord(number, ids, cost, known))
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
    is_class = isinstance(labels, Mapping)
    builder = _Builder(parts, boundaries, hmms, sorted(befores), is_class=is_class)
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
        *,
        is_class: bool,
    ) -> None:
        self._parts, self._boundaries, self._hmms = parts, boundaries, hmms
        self._befores = befores  # phones that a word may begin behind
        self._is_class = is_class  # then G does not ask for the words themselves
        self._arcs: list[tuple[int, tuple[int, int, float, int]]] = []  # source, ARC
        self._num_states = 1
        self._ends: dict[int, int] = {}  # last phone -> state behind it
        # Of each class: phone before -> state that words begin in; all such states;
        # cost of its best word.
        self._entries: list[dict[int, int]] = []
        self._states: list[list[int]] = []
        self._costs: list[float] = []
        # Of each such state of the last class: first phone of a word -> its HMM there.
        self._first_hmms: dict[int, dict[int, int]] = {}
        # Of the last class: beginning of words -> state behind it.
        self._behind: dict[tuple[int, ...], int] = {}

    def begin(self, words: Sequence[AddedWord]) -> None:
        """Add the states that words of a class begin in, one for contexts alike.

        They begin behind words of HCL, and behind one another.
        """
        firsts = {word.phones[0] for word in words}
        state_of: dict[tuple[int, ...], int] = {}
        self._first_hmms, self._behind, entry_of = {}, {}, {}
        for before in self._befores:
            hmms = {phone: self._hmm(before, phone) for phone in firsts}
            key = tuple(hmms.values())
            if key not in state_of:
                state_of[key] = self._new_state()
                self._first_hmms[state_of[key]] = hmms
            entry_of[before] = state_of[key]
        self._entries.append(entry_of)
        self._states.append(list(self._first_hmms))
        self._costs.append(min(word.cost for word in words))

    def add(self, word: AddedWord) -> None:
        """Add the states of a pronunciation.

        Words of a class share the arcs of common beginnings, and are output at their
        last phones. Where G has the words, each is output at its first one.
        """
        base = self._costs[-1] if self._is_class else word.cost
        last = len(word.phones) - 1
        output = last if self._is_class else 0
        if not self._is_class:
            self._behind = {}
        for n, phone in enumerate(word.phones):
            key = word.phones[: n + 1]
            if n < last and key in self._behind:
                continue
            cost = base if n == 0 else 0.0
            cost += word.cost - base if n == output else 0.0
            label = word.word if n == output else 0
            if n < last:
                target = self._behind[key] = self._new_state()
            elif phone in self._ends:
                target = self._ends[phone]
            else:
                target = self._ends[phone] = self._new_state()
            for hmm, sources in self._ways(key):
                self._put(hmm, sources, target, label, cost)

    def _ways(self, key: tuple[int, ...]) -> list[tuple[int, list[int]]]:
        """Return the HMMs of the last phone of a beginning, and where each begins."""
        *before, phone = key
        if before:
            return [(self._hmm(before[-1], phone), [self._behind[key[:-1]]])]
        ways: dict[int, list[int]] = {}
        for entry, found in self._first_hmms.items():
            ways.setdefault(found[phone], []).append(entry)
        return list(ways.items())

    def _hmm(self, before: int, phone: int) -> int:
        """Return the number of the HMM of a phone behind another one."""
        return self._hmms.index((before, phone)[-self._hmms.tree.context_width :])

    def _new_state(self) -> int:
        self._num_states += 1
        return self._num_states - 1

    def _put(
        self, hmm: int, sources: Sequence[int], target: int, word: int, cost: float
    ) -> None:
        """Put an HMM between states; what enters it has the word and the cost."""
        found = self._hmms.hmms[hmm]
        states = [*(self._new_state() for _ in range(found.num_states - 1)), target]
        for source, tid, own, to in found.arcs:
            if source == 0:
                row = tid, word, cost + own, states[to]
                self._arcs += [(entry, row) for entry in sources]
            self._arcs.append((states[source], (tid, 0, own, states[to])))

    def finish(self, labels: np.ndarray, label_of: np.ndarray | None) -> AddedWords:
        """Return what was added, with arcs that continue in HCL.

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
        start = self._boundaries.state[self._boundaries.phone == NO_PHONE]
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
