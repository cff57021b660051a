"""The store of one search: tokens and links of all frames in flat, growing arrays.

A *token* is a graph state reached at a frame, with the least cost of getting there; a
*link* is a graph arc between two tokens. Tokens of frame f are token_begin[f] ...
token_begin[f + 1] - 1; links name them by their numbers in the frame, from 0. Links lie
in the order they are made: the epsilon links among the tokens of frame 0, the emitting
links from frame 0 to 1, the epsilon links of frame 1, and so on; within each group the
links of one source token are neighbours.

What is needed only while a frame is searched, above all the map from graph states to
tokens, is kept apart in a `Scratch`: it belongs to whoever searches at the moment, so
that any number of searches that wait for their next frames share a few of them.

Public: `Store`, `Scratch`, `LINK`, `new_store`, `new_scratch`, and for kernels
`with_room`, `with_queue`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from latflow.decode.search_graph import Records

# Unsigned, so that kernels can index by the fields without a test for negative numbers.
LINK = np.dtype(
    [
        ("source", "u4"),
        ("target", "u4"),
        ("arc", "u4"),
        ("acoustic", "f4"),
        ("total", "f8"),
    ]
)

# Entries of Store.counts.
FRAMES, TOKENS, LINKS, SETTLED, EXPANDED, KEPT = range(6)
# Entries of Scratch.clock.
BASE, NUM_EPSILON = range(2)


class Store(NamedTuple):
    """Tokens and links; all arrays have room to spare.

    Attributes:
        cost: float64[tokens], graph cost plus scaled acoustic cost of the best way.
        state: uint32[tokens], graph state.
        link: `LINK`[links]: source and target token, numbers in their frames; packed
            arc (`SearchGraph.arcs`); unscaled acoustic cost; cost of the best way that
            ends in this link.
        token_begin: int64[frames + 2].
        epsilon_begin: int64[frames + 2], first epsilon link of each frame.
        emitting_begin: int64[frames + 2], first link that leaves each frame.
        counts: int64[6]: FRAMES decoded; TOKENS and LINKS held; SETTLED frames, at
            which links have been pruned last; EXPANDED tokens in all; links KEPT by the
            last pruning of all frames.
    """

    cost: np.ndarray
    state: np.ndarray
    link: Records
    token_begin: np.ndarray
    epsilon_begin: np.ndarray
    emitting_begin: np.ndarray
    counts: np.ndarray


class Scratch(NamedTuple):
    """What the search through one frame needs besides the store.

    Attributes:
        serial: int32[S], for each graph state the token that reached it last: its
            number in its frame + clock[BASE] of that time.
        with_epsilon: int32[some], tokens of the frame whose states have epsilon arcs.
        queue: int32[some], of these the ones whose epsilon arcs are to be followed.
        clock: int64[2]: BASE, above all serials of earlier frames; NUM_EPSILON, length
            of `with_epsilon`.
    """

    serial: np.ndarray
    with_epsilon: np.ndarray
    queue: np.ndarray
    clock: np.ndarray


def new_store() -> Store:
    """Make an empty store."""
    return Store(
        cost=np.empty(4096),
        state=np.empty(4096, np.uint32),
        link=np.empty(8192, LINK),
        token_begin=np.zeros(256, np.int64),
        epsilon_begin=np.zeros(256, np.int64),
        emitting_begin=np.zeros(256, np.int64),
        counts=np.zeros(6, np.int64),
    )


def new_scratch(num_states: int) -> Scratch:
    """Make the scratch for a graph of `num_states` states."""
    return Scratch(
        serial=np.full(num_states, -1, np.int32),
        with_epsilon=np.empty(4096, np.int32),
        queue=np.empty(4096, np.int32),
        clock=np.zeros(2, np.int64),
    )


@njit(cache=True, nogil=True)
def grown(array: np.ndarray, size: int) -> np.ndarray:
    """The array, or a larger copy that has at least `size` entries."""
    if len(array) >= size:
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    for i in range(len(array)):  # compiles sooner than a slice
        larger[i] = array[i]
    return larger


@njit(cache=True, nogil=True)
def with_room(store: Store, tokens: int = 0, links: int = 0, frames: int = 0) -> Store:
    """The store with room for at least so many of each."""
    return Store(
        grown(store.cost, tokens),
        grown(store.state, tokens),
        grown(store.link, links),
        grown(store.token_begin, frames + 2),
        grown(store.epsilon_begin, frames + 2),
        grown(store.emitting_begin, frames + 2),
        store.counts,
    )


@njit(cache=True, nogil=True)
def with_queue(scratch: Scratch, size: int) -> Scratch:
    """The scratch with room for `size` tokens that have epsilon arcs."""
    return Scratch(
        scratch.serial,
        grown(scratch.with_epsilon, size),
        grown(scratch.queue, size),
        scratch.clock,
    )
