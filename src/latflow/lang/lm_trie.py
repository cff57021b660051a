"""A back-off language model as flat arrays, to walk through word by word.

The states of the model are histories: the empty one is the *root*, and every n-gram
that begins a longer one, or has a back-off weight of its own, is one more. A state has
an arc for each word that the model lists behind its history; a word that is not listed
takes the back-off cost to the state of a shorter history, and is looked up there. An
arc leads to the longest ending of history and word that is a state. So walking needs no
list of words, just a state number.

Arcs of a state are sorted by *label*, the number of a word in the model; arcs of all
states lie one behind the other, 12 bytes an n-gram. Costs are negated natural
logarithms. All arrays are read only, and may be views of a memory-mapped file, which
`save` writes and `load` opens: a large ARPA file is parsed once.

A grammar acceptor with back-off arcs (`lm/G.fst`) is walked through in the same way:
its back-off arcs, which carry no word, are taken only where a word is not listed.

Public: `LmTrie`, `LmArrays`, `walk` (for kernels).

Source: Kaldi `lm/const-arpa-lm.cc` (`ConstArpaLmDeterministicFst`),
`fstext/deterministic-fst-inl.h` (`BackoffDeterministicOnDemandFst`).
"""

from __future__ import annotations

import json
import logging
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.lang.arpa import Level, NgramModel, read_arpa
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START
from latflow.lang.ngram_counts import NONE

log = logging.getLogger(__name__)

ROOT = 0  # the state of the empty history
_UNKNOWN_WORDS = ("<unk>", "<UNK>")
_NOT_LISTED = np.iinfo(np.int32).min  # label of a word that no arc can have
_MAGIC = b"latflow back-off model 1\n"
_ALIGNMENT = 64  # of the arrays in the file, a cache line


class LmArrays(NamedTuple):
    """What kernels need of a model; S states, A arcs.

    Attributes:
        arc_begin: int64[S + 1], where the arcs of each state begin.
        label: int32[A], ascending for each state.
        cost: float32[A], -ln of the probability.
        next_state: int32[A].
        backoff_state: int32[S], of the next shorter history; -1 for none.
        backoff_cost: float32[S], -ln of the back-off weight; 0 where there is none.
    """

    arc_begin: np.ndarray
    label: np.ndarray
    cost: np.ndarray
    next_state: np.ndarray
    backoff_state: np.ndarray
    backoff_cost: np.ndarray


@dataclass(frozen=True, eq=False)
class LmTrie:
    """A back-off model, and how the word ids of lattices become its labels.

    Attributes:
        arrays: states and arcs.
        order: length of the longest n-grams; 0 if it is not known (a grammar).
        start: state at the start of a sentence.
        end: label of the end of a sentence.
        words: label -> word; empty for a grammar, whose labels are word ids.
        label_of: int32[largest word id + 1], label of each word id; ~u for one that the
            model does not list, where u is the label of the model's unknown word.
        names: word id -> word, for messages.
    """

    arrays: LmArrays
    order: int
    start: int
    end: int
    words: list[str]
    label_of: np.ndarray
    names: Mapping[int, str]

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.arrays.backoff_state)

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.arrays.label)

    # -- making ---------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path, word_ids: Mapping[str, int]) -> LmTrie:
        """Read an ARPA file, or map what `save` wrote.

        Args:
            path: of either; the content tells which it is.
            word_ids: words.txt, word -> id: the words of lattices.

        Raises:
            UserError: the file is missing or faulty, or its model cannot begin or end
                sentences.
        """
        file = Path(path)
        if not file.is_file():
            raise UserError("no such file", file=file, remedy="check the path")
        with file.open("rb") as stream:
            is_saved = stream.read(len(_MAGIC)) == _MAGIC
        if is_saved:
            return _open(file, word_ids)
        return cls.from_model(read_arpa(file), word_ids, file=file)

    @classmethod
    def from_model(
        cls,
        model: NgramModel,
        word_ids: Mapping[str, int],
        *,
        file: str | Path | None = None,
    ) -> LmTrie:
        """Lay out a model; takes time in proportion to its n-grams.

        Args:
            model: of any order.
            word_ids: words.txt, word -> id.
            file: where the model comes from, for messages.

        Raises:
            UserError: the model lacks `<s>` or `</s>`.
        """
        for word in (SENTENCE_START, SENTENCE_END):
            if word not in model.word_ids:
                raise UserError(
                    f"the language model has no {word}",
                    file=file,
                    remedy="estimate it on sentences framed by <s> and </s>",
                )
        arrays = _lay_out(model.levels)
        start = int(arrays.next_state[model.word_ids[SENTENCE_START]])
        return _with_words(arrays, model.order, start, model.words, word_ids)

    @classmethod
    def from_graph(
        cls,
        grammar: Graph,
        word_ids: Mapping[str, int] | None = None,
        *,
        file: str | Path | None = None,
    ) -> LmTrie:
        """Take a grammar acceptor such as `lm/G.fst`.

        Its output labels are words; an arc without one (`#0:<eps>`) is a back-off arc.

        Args:
            grammar: deterministic, with at most one back-off arc a state.
            word_ids: words.txt, for messages; None leaves words without names.
            file: where it comes from, for messages.

        Raises:
            UserError: a state has two arcs with a word, or two back-off arcs, or
                back-off arcs form a cycle.
        """
        arrays, end = _from_grammar(grammar, file)
        label_of = np.full(end, _NOT_LISTED, np.int32)
        listed = arrays.label[arrays.label < end]
        label_of[listed] = listed
        names = {} if word_ids is None else {i: word for word, i in word_ids.items()}
        return cls(arrays, 0, grammar.start, end, [], label_of, names)

    def save(self, path: str | Path) -> None:
        """Write the model to a file that `load` maps into memory.

        Raises:
            UserError: the model is a grammar; the disk is full.
        """
        if not self.words:
            raise UserError(
                "a grammar has no words to be written",
                file=path,
                remedy="keep it as the FST that it is",
            )
        head = {
            "order": self.order,
            "start": self.start,
            "num_states": self.num_states,
            "num_arcs": self.num_arcs,
            "words": self.words,
        }
        header = json.dumps(head, ensure_ascii=False).encode()
        with atomic_output(path) as temporary, temporary.open("wb") as stream:
            stream.write(_MAGIC + len(header).to_bytes(8, "little") + header)
            for array in self.arrays:
                stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
                stream.write(np.ascontiguousarray(array).data)

    # -- asking ---------------------------------------------------------------------

    def labels(self, words: np.ndarray) -> np.ndarray:
        """Labels of word ids, as `walk` takes them, int32[N].

        A word that the model lacks takes the place of the model's unknown word, as in
        Kaldi's `ConstArpaLm`; 0, no word, gets a label that no arc has.

        Args:
            words: int32[N], word ids.

        Raises:
            UserError: the model lacks a word, and has no unknown word.
        """
        is_word = words != 0
        is_beyond = words >= len(self.label_of)
        labels = self.label_of[np.where(is_word & ~is_beyond, words, 0)]
        labels[is_beyond] = self._unknown
        labels[~is_word] = _NOT_LISTED
        missing = is_word & (labels == _NOT_LISTED)
        if missing.any():
            word = int(words[missing][0])
            raise UserError(
                f"the language model lacks the word {self.names.get(word, word)!r}",
                remedy="take a model with that word, or with <unk>",
            )
        return labels

    def lacks(self, words: np.ndarray) -> np.ndarray:
        """Which word ids the model does not list, bool[N]."""
        inside = np.minimum(words, len(self.label_of) - 1)
        return (words >= len(self.label_of)) | (self.label_of[inside] < 0)

    def sentence_costs(self, words: np.ndarray) -> np.ndarray:
        """Cost of each word of a sentence, and of its end, float64[N + 1].

        Args:
            words: int32[N], word ids.

        Raises:
            UserError: as `labels`.
        """
        labels = np.append(self.labels(np.asarray(words, np.int32)), self.end)
        return _sentence_costs(self.arrays, self.start, labels.astype(np.int32))

    @cached_property
    def _unknown(self) -> int:
        """Label of words that the model does not list."""
        return _unknown_label(self.words)


def _unknown_label(words: list[str]) -> int:
    """~ label of the unknown word; `_NOT_LISTED` if there is none."""
    for word in _UNKNOWN_WORDS:
        if word in words:
            return ~words.index(word)
    return int(_NOT_LISTED)


def _with_words(
    arrays: LmArrays,
    order: int,
    start: int,
    words: list[str],
    word_ids: Mapping[str, int],
) -> LmTrie:
    """Match the words of a model with words.txt."""
    label_by_word = {word: label for label, word in enumerate(words)}
    size = max(word_ids.values(), default=0) + 1
    label_of = np.full(size, _unknown_label(words), np.int32)
    for word, word_id in word_ids.items():
        label = label_by_word.get(word)
        if label is not None:
            label_of[word_id] = label
    end = label_by_word[SENTENCE_END]
    names = {word_id: word for word, word_id in word_ids.items()}
    return LmTrie(arrays, order, start, end, words, label_of, names)


# -- walking ------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def find_arc(lm: LmArrays, state: int, label: int) -> int:
    """The arc of a state that has a label, -1 if there is none.

    The root of an n-gram model has an arc for each label: there it is at its own place.
    """
    first, last = lm.arc_begin[state], lm.arc_begin[state + 1]
    if state == ROOT and label < last - first and lm.label[first + label] == label:
        return first + label
    while first < last:
        middle = (first + last) // 2
        if lm.label[middle] < label:
            first = middle + 1
        else:
            last = middle
    if first < lm.arc_begin[state + 1] and lm.label[first] == label:
        return first
    return -1


@njit(cache=True, nogil=True)
def walk(lm: LmArrays, state: int, label: int) -> tuple[float, int]:
    """Take one word.

    Args:
        lm: the model.
        state: history before the word.
        label: of the word, see `LmTrie.labels`. ~u stands for a word that the model
            does not list: it has the cost of u and leaves the empty history, as in
            Kaldi.

    Returns:
        (cost, state after the word); (inf, -1) if the model has no way with it.
    """
    cost = 0.0
    wanted = label if label >= 0 else ~label
    while state >= 0:
        arc = find_arc(lm, state, wanted)
        if arc >= 0:
            return cost + lm.cost[arc], lm.next_state[arc] if label >= 0 else ROOT
        cost += lm.backoff_cost[state]
        state = lm.backoff_state[state]
    return np.inf, -1


@njit(cache=True, nogil=True)
def _sentence_costs(lm: LmArrays, start: int, labels: np.ndarray) -> np.ndarray:
    """Cost of each label, one after the other, float64[N]; inf behind a dead end."""
    costs = np.full(len(labels), np.inf)
    state = start
    for n in range(len(labels)):
        costs[n], state = walk(lm, state, labels[n])
        if state < 0:
            break
    return costs


# -- laying out an n-gram model -----------------------------------------------------


def _lay_out(levels: list[Level]) -> LmArrays:
    """States and arcs of the levels of a model, short n-grams first.

    Row r of level n is arc r of those of level n. A row is a state too if it is the
    prefix of a longer n-gram or has a back-off weight; states are numbered in the order
    of their rows, so that the arcs of all states follow each other.
    """
    own: list[np.ndarray] = []  # state of each row, -1 for none
    num_arcs = [np.array([len(levels[0].word)])]  # of each state
    backoff = [np.zeros(1)]
    num_states = 1  # the root
    for level, longer in zip(levels, [*levels[1:], None], strict=True):
        weight = level.backoff_of(np.arange(len(level.word)))
        counts = np.zeros(len(level.word), np.int64)
        if longer is not None:
            counts = np.bincount(longer.prefix, minlength=len(level.word))
        is_state = (counts > 0) | (weight != 0.0)
        states = num_states - 1 + np.cumsum(is_state)
        own.append(np.where(is_state, states, -1).astype(np.int32))
        num_arcs.append(counts[is_state])
        backoff.append(weight[is_state])
        num_states += int(is_state.sum())
    arrays = LmArrays(
        arc_begin=np.concatenate([[0], *num_arcs]).cumsum().astype(np.int64),
        label=np.concatenate([level.word for level in levels]).astype(np.int32),
        cost=_as_costs(np.concatenate([level.log_prob for level in levels])),
        next_state=np.concatenate(own),  # where it is a state; the rest is linked
        backoff_state=np.full(num_states, -1, np.int32),
        backoff_cost=_as_costs(np.concatenate(backoff)),
    )
    _link(arrays)
    return _read_only(arrays)


def _as_costs(log10: np.ndarray) -> np.ndarray:
    """Decadic logarithms as costs, float32."""
    return (log10 * -math.log(10.0)).astype(np.float32)


@njit(cache=True, nogil=True)
def _link(lm: LmArrays) -> None:
    """Find the shorter history of each state, and where the other arcs lead.

    The shorter history of `h w` is where w leads from the shorter history of h; that is
    shorter than h, so that the arcs there are linked already when h's turn comes.

    Args:
        lm: on entry `next_state` is the state of history and word, -1 where they are
            none; changed in place, and `backoff_state` too.
    """
    for state in range(len(lm.backoff_state)):
        for arc in range(lm.arc_begin[state], lm.arc_begin[state + 1]):
            shorter = ROOT
            if state != ROOT:
                shorter = walk(lm, lm.backoff_state[state], lm.label[arc])[1]
            own = lm.next_state[arc]
            if own >= 0:
                lm.backoff_state[own] = shorter
            else:
                lm.next_state[arc] = shorter


def _read_only(arrays: LmArrays) -> LmArrays:
    """The same arrays, not to be written: Numba compiles kernels for one kind only."""
    for array in arrays:
        array.setflags(write=False)
    return arrays


# -- grammars -----------------------------------------------------------------------


def _from_grammar(grammar: Graph, file: str | Path | None) -> tuple[LmArrays, int]:
    """States and arcs of a grammar, and the label that stands for sentence ends."""
    source, word = grammar.sources(), np.array(grammar.olabel)
    is_backoff = word == 0
    num_states = grammar.num_states
    end = int(word.max(initial=0)) + 1
    ends = np.flatnonzero(np.isfinite(grammar.final)).astype(np.int32)
    source_of_word = np.concatenate([source[~is_backoff], ends])
    label = np.concatenate([word[~is_backoff], np.full(len(ends), end, np.int32)])
    order = np.lexsort((label, source_of_word))
    source_of_word, label = source_of_word[order], label[order]
    if ((np.diff(source_of_word) == 0) & (np.diff(label) == 0)).any():
        _refuse("the grammar has a state with two arcs of one word", file)
    counts = np.bincount(source_of_word, minlength=num_states)
    backoff_state = np.full(num_states, -1, np.int32)
    backoff_cost = np.zeros(num_states, np.float32)
    if (np.bincount(source[is_backoff], minlength=1) > 1).any():
        _refuse("the grammar has a state with two back-off arcs", file)
    backoff_state[source[is_backoff]] = grammar.next_state[is_backoff]
    backoff_cost[source[is_backoff]] = grammar.weight[is_backoff]
    _check_backoff(backoff_state, file)
    costs = np.concatenate([grammar.weight[~is_backoff], grammar.final[ends]])
    targets = np.concatenate([grammar.next_state[~is_backoff], ends])
    arrays = LmArrays(
        arc_begin=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        label=label.astype(np.int32),
        cost=costs[order].astype(np.float32),
        next_state=targets[order].astype(np.int32),
        backoff_state=backoff_state,
        backoff_cost=backoff_cost,
    )
    return _read_only(arrays), end


def _check_backoff(backoff_state: np.ndarray, file: str | Path | None) -> None:
    """Make sure that backing off comes to an end."""
    state = backoff_state
    for _ in range(len(backoff_state).bit_length()):
        if (state == NONE).all():
            return
        # twice as many steps each time
        state = np.where(state == NONE, NONE, state[state])
    if (state != NONE).any():
        _refuse("the back-off arcs of the grammar form a cycle", file)


def _refuse(what: str, file: str | Path | None) -> NoReturn:
    remedy = "take the G.fst that was made of an n-gram model"
    raise UserError(what, file=file, remedy=remedy)


# -- files --------------------------------------------------------------------------


def _open(file: Path, word_ids: Mapping[str, int]) -> LmTrie:
    """Map a file that `LmTrie.save` wrote."""
    with file.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    at = len(_MAGIC) + 8
    length = int.from_bytes(content[at - 8 : at], "little")
    arrays: list[np.ndarray] = []
    try:
        head = json.loads(content[at : at + length])
        at += length
        num_states, num_arcs = head["num_states"], head["num_arcs"]
        sizes = (num_states + 1, *[num_arcs] * 3, *[num_states] * 2)
        for size, dtype in zip(sizes, ("q", "i", "f", "i", "i", "f"), strict=True):
            at += -at % _ALIGNMENT
            arrays.append(np.frombuffer(content, np.dtype(dtype), size, at))
            at += arrays[-1].nbytes
    except ValueError:
        raise UserError(
            "the language model's file is cut off", file=file, remedy="make it again"
        ) from None
    return _with_words(
        LmArrays(*arrays), head["order"], head["start"], head["words"], word_ids
    )
