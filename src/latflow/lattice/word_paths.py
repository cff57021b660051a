"""The paths of a lattice that have given words.

A state of the result is a state of the lattice with the number of words so far.

Source: composition with the acceptor of a transcript, as Kaldi's `lattice-compose`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from latflow.jit import njit
from latflow.lattice.lattice import CompactLattice, Lattice

Kind = TypeVar("Kind", Lattice, CompactLattice)
_IMPOSSIBLE = np.int32(-1)  # a word that nobody says


def word_paths(lattice: Kind, words: np.ndarray) -> Kind | None:
    """Return the lattice of the paths with given words; None if there are none.

    Args:
        lattice: raw or compact; an arc whose graph cost is inf is on no path.
        words: word ids, int32[N].
    """
    words = np.ascontiguousarray(words, np.int32)
    word = np.where(np.isfinite(lattice.graph_cost), lattice.word, _IMPOSSIBLE)
    arrays = lattice.arc_begin, lattice.next_state, word
    number = _numbers(*arrays, words)
    states, done = map(np.ascontiguousarray, np.nonzero(number >= 0))
    arcs, begin, target = _arcs(*arrays, words, number, states, done)
    is_end = lattice.is_final[states] & (done == len(words))
    found = lattice.selected(states, arcs, begin, target, is_end).connected()
    return found if found.num_states else None


@njit(cache=True, nogil=True)
def _numbers(
    arc_begin: np.ndarray, next_state: np.ndarray, word: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """Number the states that are reached by word, int32[S, N + 1]; else -1."""
    number = np.full((len(arc_begin) - 1, len(words) + 1), -1, np.int32)
    number[0, 0] = 0
    count = 0
    for state in range(len(number)):
        for done in range(len(words) + 1):
            if number[state, done] < 0:
                continue
            number[state, done] = count
            count += 1
            for arc in range(arc_begin[state], arc_begin[state + 1]):
                then = _after(word[arc], done, words)
                if then >= 0:
                    number[next_state[arc], then] = 0
    return number


@njit(cache=True, nogil=True)
def _arcs(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    word: np.ndarray,
    words: np.ndarray,
    number: np.ndarray,
    states: np.ndarray,
    done: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the arcs between what is reached.

    Returns:
        Their numbers in the lattice, int64[B]; where those of each start, int64[R + 1];
        what they lead to, int32[B].
    """
    begin = np.zeros(len(states) + 1, np.int64)
    most = (arc_begin[states + 1] - arc_begin[states]).sum()
    arcs, target = np.empty(most, np.int64), np.empty(most, np.int32)
    made = 0
    for node in range(len(states)):
        for arc in range(arc_begin[states[node]], arc_begin[states[node] + 1]):
            then = _after(word[arc], done[node], words)
            if then >= 0:
                arcs[made], target[made] = arc, number[next_state[arc], then]
                made += 1
        begin[node + 1] = made
    return arcs[:made], begin, target[:made]


@njit(cache=True, nogil=True)
def _after(word: int, done: int, words: np.ndarray) -> int:
    """Return how many words are passed after an arc; -1 if it has another word."""
    if word == 0:
        return done
    return done + 1 if done < len(words) and words[done] == word else -1
