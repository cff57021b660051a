"""The paths of a lattice that have given words.

A state of the result is a state of the lattice with the number of words said so far.

Public: `word_paths`.

Source: composition with the acceptor of a transcript, as Kaldi's `lattice-compose`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numba import njit

from latflow.lattice.lattice import CompactLattice, Lattice

Kind = TypeVar("Kind", Lattice, CompactLattice)
_IMPOSSIBLE = np.int32(-1)  # a word that nobody says


def word_paths(lattice: Kind, words: np.ndarray) -> Kind | None:
    """Return the lattice of the paths with given words; None if there are none.

    Args:
        lattice: raw or compact; an arc whose graph cost is inf is on no path.
        words: word ids, int32[N].
    """
    word = np.where(np.isfinite(lattice.graph_cost), lattice.word, _IMPOSSIBLE)
    arcs = lattice.arc_begin, lattice.next_state, word
    words = np.ascontiguousarray(words, np.int32)
    found = _product(*arcs, lattice.is_final, words)
    return lattice.taken(*found) if len(found[0]) else None


@njit(cache=True, nogil=True)
def _product(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    word: np.ndarray,
    is_final: np.ndarray,
    words: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return what `Lattice.taken` makes the paths of, all empty if there are none."""
    num_states, num_words = len(is_final), len(words)
    # whether some words of the transcript lead to a state, and the rest to an end
    is_used = np.zeros((num_states, num_words + 1), np.bool_)
    is_used[0, 0] = True
    for state in range(num_states):
        for said in range(num_words + 1):
            if is_used[state, said]:
                for arc in range(arc_begin[state], arc_begin[state + 1]):
                    then = _after(word[arc], said, words)
                    if then >= 0:
                        is_used[next_state[arc], then] = True
    number = np.full((num_states, num_words + 1), -1, np.int32)
    num_nodes, num_arcs = 0, 0
    for state in range(num_states - 1, -1, -1):
        for said in range(num_words, -1, -1):
            if not is_used[state, said]:
                continue
            goes_on = 0
            for arc in range(arc_begin[state], arc_begin[state + 1]):
                then = _after(word[arc], said, words)
                if then >= 0 and is_used[next_state[arc], then]:
                    goes_on += 1
            is_used[state, said] = goes_on or (is_final[state] and said == num_words)
            if is_used[state, said]:
                number[state, said] = num_nodes
                num_nodes += 1
                num_arcs += goes_on
    states = np.empty(num_nodes, np.int64)
    is_end = np.empty(num_nodes, np.bool_)
    begin = np.zeros(num_nodes + 1, np.int64)
    arcs = np.empty(num_arcs, np.int64)
    target = np.empty(num_arcs, np.int32)
    node, made = 0, 0
    for state in range(num_states):
        for said in range(num_words + 1):
            if not is_used[state, said]:
                continue
            states[node] = state
            is_end[node] = is_final[state] and said == num_words
            for arc in range(arc_begin[state], arc_begin[state + 1]):
                then = _after(word[arc], said, words)
                if then >= 0 and is_used[next_state[arc], then]:
                    arcs[made] = arc
                    # numbers were given out from the end
                    target[made] = num_nodes - 1 - number[next_state[arc], then]
                    made += 1
            node += 1
            begin[node] = made
    return states, arcs, begin, target, is_end


@njit(cache=True, nogil=True)
def _after(word: int, said: int, words: np.ndarray) -> int:
    """Return how many words are said after an arc; -1 if it has another word."""
    if word == 0:
        return said
    return said + 1 if said < len(words) and words[said] == word else -1
