"""From the tokens of a finished search to the arrays of a lattice.

Tokens become states in the order of frames; within a frame, epsilon links lead forward.
Where the graph has cycles of epsilon arcs (of cost 0), a lattice in topological order
cannot hold all of a cycle's links: the best way to every token is kept, and the links
that would go back on it are left out.

Public: `collect`, `break_cycles`.

Source: Kaldi `decoder/lattice-faster-decoder.cc` (`GetRawLattice`, `TopSortTokens`; it
refuses graphs with such cycles).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.decode.search_graph import SearchGraph
from latflow.decode.tokens import FRAMES, LINKS, TOKENS, Store

Collected = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@njit(cache=True, nogil=True)
def collect(graph: SearchGraph, store: Store) -> Collected:
    """Number the states and sort the arcs of what a search has left.

    Args:
        graph: the packed graph.
        store: a store after `latflow.decode.pruning.finish`; if the graph has epsilon
            cycles, after `break_cycles` and another `finish`, which removes what then
            leads nowhere.

    Returns:
        frame: int32[S];
        graph_state: int32[S];
        arc_begin: int64[S + 1];
        next_state: int32[A];
        link: int64[A], the link in the store that each arc is.
    """
    position = break_cycles(graph, store)
    num_states = store.counts[TOKENS]
    source = np.empty(store.counts[LINKS], np.int32)
    target = np.empty(store.counts[LINKS], np.int32)
    frame = np.empty(num_states, np.int32)
    graph_state = np.empty(num_states, np.int32)
    for f in range(store.counts[FRAMES] + 1):
        first, last = store.token_begin[f], store.token_begin[f + 1]
        for i in range(first, last):
            frame[position[i]] = f
            graph_state[position[i]] = store.state[i]
        _find_ends(store, f, position, source, target)
    arc_begin = np.zeros(num_states + 1, np.int64)
    for state in source:
        arc_begin[state + 1] += 1
    arc_begin = np.cumsum(arc_begin)
    fill = arc_begin[:-1].copy()
    next_state = np.empty(len(source), np.int32)
    link = np.empty(len(source), np.int64)
    for at in range(len(source)):
        next_state[fill[source[at]]] = target[at]
        link[fill[source[at]]] = at
        fill[source[at]] += 1
    return frame, graph_state, arc_begin, next_state, link


@njit(cache=True, nogil=True)
def _find_ends(
    store: Store,
    frame: int,
    position: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
) -> None:
    """Set the states that the links of a frame join, those that leave it included."""
    first, following = store.token_begin[frame], store.token_begin[frame + 1]
    middle = store.emitting_begin[frame]
    is_last = frame == store.counts[FRAMES]
    end = middle if is_last else store.epsilon_begin[frame + 1]
    for at in range(store.epsilon_begin[frame], end):
        source[at] = position[first + store.link[at].source]
        there = first if at < middle else following
        target[at] = position[there + store.link[at].target]


@njit(cache=True, nogil=True)
def break_cycles(graph: SearchGraph, store: Store) -> np.ndarray:
    """Number of the state that each token becomes, int32[tokens].

    Links that would lead backward, which only cycles of epsilon arcs have, get the
    total cost inf.
    """
    num_tokens = store.counts[TOKENS]
    position = np.full(num_tokens, -1, np.int32)
    is_rooted = np.ones(num_tokens, np.bool_)
    if graph.has_epsilon_cycle:
        _find_roots(store, is_rooted)
    pending = np.zeros(num_tokens, np.int32)
    by_source = np.empty(num_tokens, np.int64)  # first epsilon link of each token
    done = 0
    for f in range(store.counts[FRAMES] + 1):
        work = (position, is_rooted, pending, by_source)
        done = _order_frame(store, f, done, work)
    return position


@njit(cache=True, nogil=True)
def _find_roots(store: Store, is_rooted: np.ndarray) -> None:
    """Mark the tokens whose best way comes straight from the frame before."""
    is_rooted[1:] = False
    for f in range(store.counts[FRAMES]):
        for at in range(store.emitting_begin[f], store.epsilon_begin[f + 1]):
            link = store.link[at]
            target = store.token_begin[f + 1] + link.target
            if link.total <= store.cost[target]:
                is_rooted[target] = True


@njit(cache=True, nogil=True)
def _order_frame(
    store: Store,
    frame: int,
    done: int,
    work: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> int:
    """Give the tokens of one frame their positions, from `done` on; return the next.

    A token may come once no epsilon link from a token without position leads to it.
    Where none may (a cycle), the token comes that has the least cost among those whose
    best way is known: from the frame before or from a token with a position.
    """
    position, is_rooted, pending, by_source = work
    first, last = store.token_begin[frame], store.token_begin[frame + 1]
    begin, end = store.epsilon_begin[frame], store.emitting_begin[frame]
    by_source[first:last] = end
    for at in range(end - 1, begin - 1, -1):
        pending[first + store.link[at].target] += 1
        by_source[first + store.link[at].source] = at
    queue = np.empty(last - first, np.int32)
    size = 0
    for i in range(first, last):
        if pending[i] == 0:
            queue[size] = i
            size += 1
    at_queue = 0
    placed = 0
    while placed < last - first:
        if at_queue == size:
            queue[size] = _next_in_cycle(store, frame, position, is_rooted)
            size += 1
        i = queue[at_queue]
        at_queue += 1
        position[i] = done + placed
        placed += 1
        at = by_source[i]
        while at < end and first + store.link[at].source == i:
            target = first + store.link[at].target
            pending[target] -= 1
            if position[target] >= 0:
                store.link[at].total = np.inf
            elif pending[target] == 0:
                queue[size] = target
                size += 1
            at += 1
    return done + placed


@njit(cache=True, nogil=True)
def _next_in_cycle(
    store: Store,
    frame: int,
    position: np.ndarray,
    is_rooted: np.ndarray,
) -> int:
    """Choose the token of a frame that comes next although a link to it is pending."""
    first = store.token_begin[frame]
    for at in range(store.epsilon_begin[frame], store.emitting_begin[frame]):
        link = store.link[at]
        source, target = first + link.source, first + link.target
        if position[source] >= 0 and link.total <= store.cost[target]:
            is_rooted[target] = True
    chosen = -1
    for i in range(store.token_begin[frame], store.token_begin[frame + 1]):
        if position[i] >= 0 or not is_rooted[i]:
            continue
        if chosen < 0 or store.cost[i] < store.cost[chosen]:
            chosen = i
    return chosen
