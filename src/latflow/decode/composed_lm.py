"""G as compositions take it: with labels of HCL, and sums of its probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from latflow.decode.parts import NOTHING, read_only
from latflow.fst.graph import Graph
from latflow.jit import njit
from latflow.lang.grammar import UNKNOWN_WORD
from latflow.lang.lm_arrays import LmArrays, of_grammar


class ComposedLm(NamedTuple):
    """G; the attributes are those of `Parts`."""

    lm: LmArrays
    sums: np.ndarray
    any_word: np.ndarray


def compose_lm(
    grammar: Graph,
    file: str | Path | None,
    label_of: np.ndarray,
    end: int,
    *,
    unknown: int = NOTHING,
) -> ComposedLm:
    """Lay out a grammar acceptor for compositions; behind its end it begins again.

    Args:
        grammar: see `of_grammar`.
        file: where it comes from, for messages.
        label_of: int32[words], the label of each word; NOTHING for one that HCL lacks,
            whose arcs are left out.
        end: the label that ends an utterance.
        unknown: the label of UNKNOWN_WORD, above `end`.

    Raises:
        UserError: see `of_grammar`.
    """
    lm, own_end = of_grammar(grammar, file)
    known = lm.label < len(label_of)
    label = np.full(len(lm.label), NOTHING, np.int32)
    label[known] = label_of[lm.label[known]]
    label[lm.label == UNKNOWN_WORD] = unknown
    label[lm.label == own_end] = end
    next_state = np.where(label == end, grammar.start, lm.next_state).astype(np.int32)
    return with_sums(_relabelled(lm._replace(next_state=next_state), label))


def with_sums(lm: LmArrays) -> ComposedLm:
    """Return G with the sums of its probabilities."""
    sums = np.exp(-lm.cost.astype(np.float64))
    _accumulate(lm.arc_begin, sums)
    return ComposedLm(LmArrays(*read_only(*lm)), *read_only(sums, _any_word(lm, sums)))


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


@njit(cache=True, nogil=True)
def _accumulate(begin: np.ndarray, values: np.ndarray) -> None:
    """Replace the values of each state by their running sums.

    Each state has its own, so that small ones are not lost.
    """
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
