"""The store of one search: tokens and links of all frames in flat, growing arrays.

A *token* is a graph state reached at a frame, with the least cost of getting there; a
*link* is a graph arc between two tokens. Tokens of frame f are token_begin[f] ...
token_begin[f + 1] - 1. Links lie in the order they are made: the epsilon links among
the tokens of frame 0, the emitting links from frame 0 to 1, the epsilon links of frame
1, and so on; within each group the links of one source token are neighbours.

Public: `Store`, `LINK`, `new_store`, and for kernels `with_room`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from latflow.decode.search_graph import Records

LINK = np.dtype(
    [
        ("source", "i4"),
        ("target", "i4"),
        ("arc", "i4"),
        ("weight", "f4"),
        ("acoustic", "f4"),
    ]
)

# Entries of Store.counts.
FRAMES, TOKENS, LINKS, SHIFT, SETTLED, EXPANDED, KEPT, EPSILONS = range(8)


class Store(NamedTuple):
    """Tokens and links; all arrays have room to spare.

    Attributes:
        cost: float64[tokens], graph cost plus scaled acoustic cost of the best way.
        extra: float64[tokens], how much the best path through the token costs more
            than the best path of all, as far as is known; inf for none.
        state: int32[tokens], graph state.
        link: `LINK`[links]: tokens, packed arc (`SearchGraph.arcs`), graph cost and
            unscaled acoustic cost.
        token_begin: int64[frames + 2].
        epsilon_begin: int64[frames + 2], first epsilon link of each frame.
        emitting_begin: int64[frames + 2], first link that leaves each frame.
        with_epsilon: int32[some], tokens of the last frame whose states have epsilon
            arcs.
        queue: int32[some], of these the ones whose epsilon arcs are to be followed.
        serial: int64[S], for each graph state the token that reached it last, counted
            over all utterances: number + counts[SHIFT].
        counts: int64[8]: FRAMES decoded; TOKENS and LINKS held; SHIFT, see serial, at
            least the number of tokens removed so far; SETTLED frames whose links have
            been pruned before; EXPANDED tokens in all; links KEPT by the last pruning
            of all frames; EPSILONS, length of `with_epsilon`.
    """

    cost: np.ndarray
    extra: np.ndarray
    state: np.ndarray
    link: Records
    token_begin: np.ndarray
    epsilon_begin: np.ndarray
    emitting_begin: np.ndarray
    with_epsilon: np.ndarray
    queue: np.ndarray
    serial: np.ndarray
    counts: np.ndarray


def new_store(num_states: int) -> Store:
    """Make an empty store for a graph of `num_states` states."""
    return Store(
        cost=np.empty(4096),
        extra=np.empty(4096),
        state=np.empty(4096, np.int32),
        link=np.empty(8192, LINK),
        token_begin=np.zeros(256, np.int64),
        epsilon_begin=np.zeros(256, np.int64),
        emitting_begin=np.zeros(256, np.int64),
        with_epsilon=np.empty(4096, np.int32),
        queue=np.empty(4096, np.int32),
        serial=np.full(num_states, -1, np.int64),
        counts=np.zeros(8, np.int64),
    )


@njit(cache=True, nogil=True)
def grown(array: np.ndarray, size: int) -> np.ndarray:
    """The array, or a larger copy that has at least `size` entries."""
    if len(array) >= size:
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


@njit(cache=True, nogil=True)
def with_room(
    store: Store, tokens: int = 0, links: int = 0, frames: int = 0, queued: int = 0
) -> Store:
    """The store with room for at least so many of each."""
    return Store(
        grown(store.cost, tokens),
        grown(store.extra, tokens),
        grown(store.state, tokens),
        grown(store.link, links),
        grown(store.token_begin, frames + 2),
        grown(store.epsilon_begin, frames + 2),
        grown(store.emitting_begin, frames + 2),
        grown(store.with_epsilon, queued),
        grown(store.queue, queued),
        store.serial,
        store.counts,
    )
