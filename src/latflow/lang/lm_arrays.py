"""The arrays of a back-off language model: making them, and walking through them.

The states of a model are histories: the empty one is the *root*, and every n-gram that
begins a longer one, or has its own back-off weight, is one more. A state has an arc for
each word that the model lists behind its history; a word that is not listed takes the
back-off cost to the state of a shorter history, and is looked up there. An arc leads to
the longest ending of history and word that is a state. So walking needs no list of
words, just a state number.

Arcs of a state are sorted by *label*, the number of a word in the model; arcs of all
states lie one behind the other, 12 bytes an n-gram. Costs are negated natural
logarithms. All arrays are read only, and may be views of a memory-mapped file.

A grammar acceptor with back-off arcs (`lm/G.fst`) is walked through in the same way:
its back-off arcs, which carry no word, are taken only where a word is not listed.

Source: Kaldi `lm/const-arpa-lm.cc` (`ConstArpaLmDeterministicFst`),
`fstext/deterministic-fst-inl.h` (`BackoffDeterministicOnDemandFst`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.jit import njit
from latflow.lang.arpa import NONE, Level

ROOT = 0  # the state of the empty history


class LmArrays(NamedTuple):
    """Arrays of a model, for kernels; S states, A arcs.

    Attributes:
        arc_begin: int64[S + 1], where the arcs of each state begin.
        label: int32[A], ascending for each state.
        cost: float32[A], -ln of the probability.
        next_state: int32[A].
        backoff_state: int32[S], of the next shorter history; -1 for none.
        backoff_cost: float32[S], -ln of the back-off weight; 0 without one.
    """

    arc_begin: np.ndarray
    label: np.ndarray
    cost: np.ndarray
    next_state: np.ndarray
    backoff_state: np.ndarray
    backoff_cost: np.ndarray


# -- walking ------------------------------------------------------------------------


@njit(cache=True, nogil=True, allocates=False)
def find_arc(lm: LmArrays, state: int, label: int) -> int:
    """Return the arc of a state that has a label, -1 if there is none.

    The root of an n-gram model has an arc for each label: there it is at its own place.
    """
    first, last = lm.arc_begin[state], lm.arc_begin[state + 1]
    if state == ROOT and label < last - first and lm.label[first + label] == label:
        return first + label
    first = first_from(lm.label, first, last, label)
    if first < last and lm.label[first] == label:
        return first
    return -1


@njit(cache=True, nogil=True, allocates=False)
def first_from(labels: np.ndarray, first: int, last: int, low: int) -> int:
    """Return the first of labels[first:last], ascending, that is no less than `low`."""
    while first < last:
        middle = (first + last) // 2
        if labels[middle] < low:
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True, allocates=False)
def walk(lm: LmArrays, state: int, label: int) -> tuple[float, int]:
    """Take one word.

    Args:
        state: history before the word.
        label: of the word, see `LmTrie.labels`. ~u stands for a word that the model
            does not list: it has the cost of u and leaves the empty history, as in
            Kaldi.

    Returns:
        (cost, state after the word); (inf, -1) if the model has no path with it.
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
def sentence_costs(lm: LmArrays, start: int, labels: np.ndarray) -> np.ndarray:
    """Return the cost of each label in turn, float64[N]; inf behind a dead end."""
    costs = np.full(len(labels), np.inf)
    state = start
    for n in range(len(labels)):
        costs[n], state = walk(lm, state, labels[n])
        if state < 0:
            break
    return costs


# -- laying out an n-gram model -----------------------------------------------------


def lay_out(levels: list[Level], *, with_all_histories: bool = False) -> LmArrays:
    """Lay out states and arcs of the levels of a model, short n-grams first.

    Row r of level n is arc r of those of level n. A row is a state too if it is the
    prefix of a longer n-gram or has a back-off weight; states are numbered in the order
    of their rows, so that the arcs of all states follow each other. Takes time in
    proportion to the number of n-grams.

    Args:
        levels: of an `NgramModel`; words are its labels.
        with_all_histories: every row but the longest is a state.
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
        if longer is not None and with_all_histories:
            is_state[:] = True
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
    """Return decadic logarithms as costs, float32, rounded as Kaldi's reader does."""
    single = log10.astype(np.float32).astype(np.float64)
    return (single * -math.log(10.0)).astype(np.float32)


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
    """Return the arrays read-only: Numba compiles kernels for one kind only."""
    for array in arrays:
        array.setflags(write=False)
    return arrays


# -- grammars -----------------------------------------------------------------------


def of_grammar(grammar: Graph, file: str | Path | None) -> tuple[LmArrays, int]:
    """Lay out a grammar acceptor.

    Args:
        grammar: deterministic, with at most one back-off arc (no output label) a state.
        file: where it comes from, for messages.

    Returns:
        (states numbered and arcs labelled as in the grammar; the label, above all
        words, of the arcs that stand for final costs and lead back to their state).

    Raises:
        UserError: a word is negative; a state has two arcs with a word, or two back-off
            arcs, or back-off arcs form a cycle.
    """
    source, word = grammar.sources(), np.array(grammar.olabel)
    if word.min(initial=0) < 0:
        _refuse(f"the grammar has the word {word.min()}", file)
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
