"""Lattice pruning: backward passes that remove links far from the best path.

The *extra cost* of a token is how much the best path through it costs more than the
best path of all. Working backwards from the last frame,

    extra(link)  = extra(target) + cost(source) + cost of the arc - cost(target)
    extra(token) = least extra of its links, inf without any,

and links above the lattice beam are removed, tokens with them. In the middle of an
utterance the last frame's tokens have extra cost 0, which is the least they can turn
out to have: what is removed then would be removed in the end as well. So pruning at
intervals bounds memory and changes nothing in the result.

Public: `prune`, `finish`.

Source: Kaldi `decoder/lattice-faster-decoder.cc` (`PruneForwardLinks`,
`PruneForwardLinksFinal`, `PruneActiveTokens`, `PruneTokensForFrame`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.decode.search_graph import SearchGraph
from latflow.decode.tokens import FRAMES, LINKS, SETTLED, SHIFT, TOKENS, Store


@njit(cache=True, nogil=True)
def prune(
    graph: SearchGraph,
    store: Store,
    acoustic_scale: float,
    lattice_beam: float,
    delta: float,
) -> None:
    """Prune what has been decoded so far.

    Goes back to frame 0, or stops early at frames that an earlier call has pruned
    already where extra costs change by no more than `delta`.

    Args:
        graph: the packed graph.
        store: changed in place.
        acoustic_scale: as in the search.
        lattice_beam: links with more extra cost than this are removed.
        delta: change of extra costs that is worth carrying on to earlier frames.
    """
    counts = store.counts
    frame = counts[FRAMES]
    first = frame
    for f in range(frame - 1, -1, -1):
        first = f
        change = _prune_frame(graph, store, f, acoustic_scale, lattice_beam)
        if f < counts[SETTLED] and change <= delta:
            break
    _compact(store, first, frame)
    counts[SETTLED] = frame


@njit(cache=True, nogil=True)
def finish(
    graph: SearchGraph, store: Store, acoustic_scale: float, lattice_beam: float
) -> bool:
    """Take final costs in and prune the whole utterance.

    Without a token in a final state all tokens of the last frame count as final, at no
    cost.

    Args:
        graph: the packed graph.
        store: changed in place.
        acoustic_scale: as in the search.
        lattice_beam: links with more extra cost than this are removed.

    Returns:
        Whether a final state was reached.
    """
    counts = store.counts
    frame = counts[FRAMES]
    first, last = store.token_begin[frame], counts[TOKENS]
    fresh = np.full(last - first, np.inf)
    for i in range(first, last):
        fresh[i - first] = store.cost[i] + graph.final[store.state[i]]
    reached_final = bool(np.isfinite(fresh).any())
    if not reached_final:
        fresh[:] = store.cost[first:last]
    if last > first:
        fresh -= fresh.min()
    _settle_epsilon(graph, store, frame, fresh, lattice_beam)
    for i in range(first, last):
        extra = fresh[i - first]
        store.extra[i] = extra if extra <= lattice_beam else np.inf
    for f in range(frame - 1, -1, -1):
        _prune_frame(graph, store, f, acoustic_scale, lattice_beam)
    _compact(store, 0, frame + 1)
    return reached_final


@njit(cache=True, nogil=True)
def link_cost(
    graph: SearchGraph, store: Store, at: int, acoustic_scale: float
) -> float:
    """Scaled cost of a link, rounded as in the search."""
    link = store.link[at]
    return graph.arcs[link.arc].weight + acoustic_scale * link.acoustic


@njit(cache=True, nogil=True)
def _link_extra(
    graph: SearchGraph, store: Store, at: int, acoustic_scale: float
) -> float:
    """Extra cost of a link without that of its target; 0 on the best way to it."""
    link = store.link[at]
    total = store.cost[link.source] + link_cost(graph, store, at, acoustic_scale)
    return max(0.0, float(total - store.cost[link.target]))


@njit(cache=True, nogil=True)
def _prune_frame(
    graph: SearchGraph,
    store: Store,
    frame: int,
    acoustic_scale: float,
    lattice_beam: float,
) -> float:
    """Prune the links that leave a frame; return the largest change of an extra cost.

    Removed links get the source -1.
    """
    first, last = store.token_begin[frame], store.token_begin[frame + 1]
    fresh = np.full(last - first, np.inf)
    for at in range(store.emitting_begin[frame], store.epsilon_begin[frame + 1]):
        link = store.link[at]
        if link.source < 0:
            continue
        extra = store.extra[link.target]
        extra += _link_extra(graph, store, at, acoustic_scale)
        if extra > lattice_beam:
            link.source = -1
        else:
            fresh[link.source - first] = min(fresh[link.source - first], extra)
    _settle_epsilon(graph, store, frame, fresh, lattice_beam)
    change = 0.0
    for i in range(first, last):
        if fresh[i - first] != store.extra[i]:
            change = max(change, abs(fresh[i - first] - store.extra[i]))
            store.extra[i] = fresh[i - first]
    return change


@njit(cache=True, nogil=True)
def _settle_epsilon(
    graph: SearchGraph,
    store: Store,
    frame: int,
    fresh: np.ndarray,
    lattice_beam: float,
) -> None:
    """Carry extra costs back over a frame's epsilon links and prune these.

    Args:
        graph: the packed graph.
        store: changed in place.
        frame: the frame.
        fresh: float64[tokens of the frame], extra costs from what follows the frame;
            changed to those that take the epsilon links in.
        lattice_beam: links with more extra cost than this are removed.
    """
    first = store.token_begin[frame]
    begin, end = store.epsilon_begin[frame], store.emitting_begin[frame]
    changed = True
    while changed:
        changed = False
        for at in range(end - 1, begin - 1, -1):
            link = store.link[at]
            if link.source < 0:
                continue
            extra = fresh[link.target - first] + _link_extra(graph, store, at, 0.0)
            if extra < fresh[link.source - first] and extra <= lattice_beam:
                fresh[link.source - first] = extra
                changed = True
    for at in range(begin, end):
        link = store.link[at]
        if link.source < 0:
            continue
        extra = fresh[link.target - first] + _link_extra(graph, store, at, 0.0)
        if extra > lattice_beam:
            link.source = -1


@njit(cache=True, nogil=True)
def _compact(store: Store, first_frame: int, end_frame: int) -> None:
    """Close the gaps that pruning has left in the frames first_frame ... end_frame - 1.

    Tokens of later frames move along; their epsilon links too.
    """
    counts = store.counts
    origin = store.token_begin[first_frame]
    moved = np.empty(counts[TOKENS] - origin, np.int32)
    num_tokens = origin
    for f in range(first_frame, counts[FRAMES] + 1):
        begin, end = store.token_begin[f], store.token_begin[f + 1]
        if f > first_frame:
            store.token_begin[f] = num_tokens
        else:
            num_tokens = begin
        for i in range(begin, end):
            if f < end_frame and store.extra[i] == np.inf:
                moved[i - origin] = -1
                continue
            moved[i - origin] = num_tokens
            store.cost[num_tokens] = store.cost[i]
            store.extra[num_tokens] = store.extra[i]
            store.state[num_tokens] = store.state[i]
            num_tokens += 1
    num_links = store.epsilon_begin[first_frame]
    for f in range(first_frame, counts[FRAMES] + 1):
        has_left = f < counts[FRAMES]
        middle = store.emitting_begin[f]
        end = store.epsilon_begin[f + 1] if has_left else counts[LINKS]
        begin = store.epsilon_begin[f]
        store.epsilon_begin[f] = num_links
        num_links = _move_links(store, begin, middle, num_links, (moved, origin))
        store.emitting_begin[f] = num_links
        num_links = _move_links(store, middle, end, num_links, (moved, origin))
    counts[SHIFT] += counts[TOKENS] - num_tokens
    counts[TOKENS], counts[LINKS] = num_tokens, num_links
    store.token_begin[counts[FRAMES] + 1] = num_tokens


@njit(cache=True, nogil=True)
def _move_links(
    store: Store, begin: int, end: int, to: int, moved: tuple[np.ndarray, int]
) -> int:
    """Move the links begin ... end - 1 that are left to `to`; return where they end."""
    number, origin = moved
    for at in range(begin, end):
        link = store.link[at]
        if link.source < 0:
            continue
        target = store.link[to]
        target.source = number[link.source - origin]
        target.target = number[link.target - origin]
        target.arc = link.arc
        target.acoustic = link.acoustic
        to += 1
    return to
