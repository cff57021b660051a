"""Token passing: one frame of the search after the other.

At each frame every token within the cutoff follows the arcs that consume the frame,
then all tokens follow epsilon arcs. The cutoff of a frame is the best cost plus the
beam, lower where more than `max_active` tokens are within it, higher where fewer than
`min_active` are; the cutoff of the next frame falls while arcs are followed.

Costs are float64 and include all frames so far; Kaldi subtracts the best cost at each
frame because it adds up in float32. Kaldi follows tokens in the order of a hash table,
here they are followed in the order in which they were made; the tokens that survive may
differ where the cutoff of the next frame has not settled, far from the best path.

Public: `SearchLimits`, `begin`, `advance`.

Source: Kaldi `decoder/lattice-faster-decoder.cc` (`GetCutoff`, `ProcessEmitting`,
`ProcessNonemitting`, `FindOrAddToken`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from latflow.decode.search_graph import SearchGraph
from latflow.decode.tokens import (
    EPSILONS,
    EXPANDED,
    FRAMES,
    KEPT,
    LINKS,
    SETTLED,
    SHIFT,
    TOKENS,
    Store,
    with_room,
)

# Epsilon cycles whose weights should add up to 0 may add up to a little less in
# float32; going round for less than this is no improvement.
_CYCLE_SLACK = 1e-5


class SearchLimits(NamedTuple):
    """What bounds the search.

    Attributes:
        beam: tokens costing more than the best of their frame plus this are dropped.
        max_active: tokens followed per frame, at most.
        min_active: tokens followed per frame, at least, even outside the beam.
        beam_delta: added to a beam that max_active or min_active has changed.
    """

    beam: float
    max_active: int
    min_active: int
    beam_delta: float


@njit(cache=True, nogil=True)
def begin(graph: SearchGraph, store: Store, limits: SearchLimits) -> Store:
    """Start an utterance: the start state and what epsilon arcs reach from it."""
    counts = store.counts
    counts[SHIFT] += counts[TOKENS]
    counts[FRAMES], counts[LINKS], counts[SETTLED] = 0, 0, 0
    counts[EXPANDED], counts[KEPT] = 0, 0
    store.token_begin[0], store.epsilon_begin[0] = 0, 0
    store.cost[0], store.extra[0], store.state[0] = 0.0, 0.0, graph.start
    counts[TOKENS] = 1
    store.serial[graph.start] = counts[SHIFT]
    start = graph.states[graph.start]
    store.with_epsilon[0] = 0
    counts[EPSILONS] = 1 if start.end > start.middle else 0
    return _follow_epsilon(graph, store, limits.beam)


@njit(cache=True, nogil=True)
def advance(
    graph: SearchGraph,
    store: Store,
    limits: SearchLimits,
    log_likes: np.ndarray,
    acoustic_scale: float,
) -> Store:
    """Search through the next frames.

    Args:
        graph: the packed graph.
        store: what the search holds; it may be changed in place.
        limits: beams.
        log_likes: float32[T, P]; -inf is allowed.
        acoustic_scale: factor on them.

    Returns:
        The store after T frames, or after fewer where no token survived: then the last
        frame has no tokens.
    """
    store = with_room(store, frames=store.counts[FRAMES] + len(log_likes))
    for t in range(len(log_likes)):
        frame = store.counts[FRAMES]
        if store.token_begin[frame] == store.counts[TOKENS]:
            break
        store, cutoff = _follow_emitting(
            graph, store, limits, log_likes[t], acoustic_scale
        )
        store = _follow_epsilon(graph, store, cutoff)
    return store


@njit(cache=True, nogil=True)
def _cutoff(cost: np.ndarray, limits: SearchLimits) -> tuple[int, float, float]:
    """Best token, cutoff of its frame, and the beam to use for the next.

    With n tokens in ascending order of cost, the cutoff is that of token max_active
    where it is below best + beam, and that of token min_active where it is above.
    """
    best = 0
    for i in range(len(cost)):
        if cost[i] < cost[best]:
            best = i
    bound = cost[best] + limits.beam
    below, within = 0, 0
    for i in range(len(cost)):
        below += cost[i] < bound
        within += cost[i] <= bound
    if below > limits.max_active:
        cutoff = np.partition(cost, limits.max_active)[limits.max_active]
        return best, cutoff, cutoff - cost[best] + limits.beam_delta
    if within <= limits.min_active:
        if len(cost) <= limits.min_active:
            return best, np.inf, np.inf
        cutoff = np.partition(cost, limits.min_active)[limits.min_active]
        return best, cutoff, cutoff - cost[best] + limits.beam_delta
    return best, bound, limits.beam


@njit(cache=True, nogil=True)
def _next_bound(
    graph: SearchGraph,
    state: int,
    cost: float,
    log_likes: np.ndarray,
    acoustic_scale: float,
) -> float:
    """Least cost at the next frame among the arcs of one token."""
    least = np.inf
    for a in range(graph.states[state].begin, graph.states[state].middle):
        arc = graph.arcs[a]
        total = cost + (arc.weight - acoustic_scale * log_likes[arc.pdf])
        least = min(least, total)
    return least


@njit(cache=True, nogil=True)
def _make_room(
    graph: SearchGraph, store: Store, first: int, last: int, cutoff: float
) -> Store:
    """Room for all that the tokens first ... last - 1 within the cutoff can reach."""
    reached = 0
    for i in range(first, last):
        if store.cost[i] <= cutoff:
            state = graph.states[store.state[i]]
            reached += state.middle - state.begin
    fresh = min(reached, len(graph.states))
    num_tokens, num_links = store.counts[TOKENS], store.counts[LINKS]
    return with_room(
        store, tokens=num_tokens + fresh, links=num_links + reached, queued=fresh
    )


@njit(cache=True, nogil=True)
def _follow_emitting(
    graph: SearchGraph,
    store: Store,
    limits: SearchLimits,
    log_likes: np.ndarray,
    acoustic_scale: float,
) -> tuple[Store, float]:
    """Follow the arcs that consume a frame; return the store and the new cutoff."""
    counts = store.counts
    frame = counts[FRAMES]
    first, last = int(store.token_begin[frame]), int(counts[TOKENS])
    best, cutoff, beam = _cutoff(store.cost[first:last], limits)
    best += first
    bound = beam + _next_bound(
        graph,
        int(store.state[best]),
        float(store.cost[best]),
        log_likes,
        acoustic_scale,
    )
    store = _make_room(graph, store, first, last, cutoff)
    bound = _pass_tokens(graph, store, log_likes, acoustic_scale, (cutoff, bound, beam))
    counts[FRAMES] = frame + 1
    store.token_begin[frame + 1] = last
    store.epsilon_begin[frame + 1] = counts[LINKS]
    return store, bound


@njit(cache=True, nogil=True)
def _pass_tokens(
    graph: SearchGraph,
    store: Store,
    log_likes: np.ndarray,
    acoustic_scale: float,
    bounds: tuple[float, float, float],
) -> float:
    """Make the tokens of the next frame and the links to them.

    Args:
        graph: the packed graph.
        store: with room for them.
        log_likes: float32[P] of the frame.
        acoustic_scale: factor on them.
        bounds: cutoff of this frame, of the next so far, and beam from this to that.

    Returns:
        Cutoff of the next frame.
    """
    cutoff, bound, beam = bounds
    states, arcs, serials = graph.states, graph.arcs, store.serial
    costs, extras, token_states = store.cost, store.extra, store.state
    with_epsilon, links = store.with_epsilon, store.link
    counts = store.counts
    first, last = store.token_begin[counts[FRAMES]], counts[TOKENS]
    num_tokens, num_links, shift = last, counts[LINKS], counts[SHIFT]
    num_expanded, num_epsilons = 0, 0
    for i in range(first, last):
        cost = costs[i]
        if cost > cutoff:
            continue
        num_expanded += 1
        state = states[token_states[i]]
        for a in range(state.begin, state.middle):
            arc = arcs[a]
            log_like = log_likes[arc.pdf]
            total = cost + (arc.weight - acoustic_scale * log_like)
            if total >= bound:
                continue
            bound = min(bound, total + beam)
            target = serials[arc.next] - shift
            if target < last:
                target = num_tokens
                num_tokens += 1
                serials[arc.next] = target + shift
                token_states[target] = arc.next
                costs[target], extras[target] = total, 0.0
                if arc.epsilons > 0:
                    with_epsilon[num_epsilons] = target
                    num_epsilons += 1
            elif total < costs[target]:
                costs[target] = total
            link = links[num_links]
            num_links += 1
            link.source, link.target, link.arc = i, target, a
            link.weight, link.acoustic = arc.weight, -log_like
    counts[TOKENS], counts[LINKS], counts[EPSILONS] = (
        num_tokens,
        num_links,
        num_epsilons,
    )
    counts[EXPANDED] += num_expanded
    return bound


@njit(cache=True, nogil=True)
def _follow_epsilon(graph: SearchGraph, store: Store, cutoff: float) -> Store:
    """Follow epsilon arcs from the last frame's tokens, then make their links."""
    counts = store.counts
    depth = counts[EPSILONS]
    store.queue[:depth] = store.with_epsilon[:depth]
    while depth > 0:
        depth, room = _relax(graph, store, cutoff, depth)
        if depth > 0:
            queued = max(depth, counts[EPSILONS]) + room
            store = with_room(store, tokens=counts[TOKENS] + room, queued=queued)
    return _link_epsilon(graph, store, cutoff)


@njit(cache=True, nogil=True)
def _relax(
    graph: SearchGraph, store: Store, cutoff: float, depth: int
) -> tuple[int, int]:
    """Pass costs on along epsilon arcs until no queued token is left, or no room.

    Args:
        graph: the packed graph.
        store: changed in place.
        cutoff: of the last frame.
        depth: tokens queued.

    Returns:
        (tokens queued; room needed to go on, in tokens).
    """
    states, arcs, serials, counts = graph.states, graph.arcs, store.serial, store.counts
    costs, extras, token_states = store.cost, store.extra, store.state
    with_epsilon, queue = store.with_epsilon, store.queue
    first, shift = store.token_begin[counts[FRAMES]], counts[SHIFT]
    slack = _CYCLE_SLACK if graph.has_epsilon_cycle else 0.0
    while depth > 0:
        i = queue[depth - 1]
        state = states[token_states[i]]
        room = state.end - state.middle
        is_tight = max(depth, counts[EPSILONS]) + room > len(queue)
        if is_tight or counts[TOKENS] + room > len(costs):
            return depth, room
        depth -= 1
        if costs[i] >= cutoff:
            continue
        for a in range(state.middle, state.end):
            arc = arcs[a]
            total = costs[i] + arc.weight
            if total >= cutoff:
                continue
            target = serials[arc.next] - shift
            if target < first:
                target = counts[TOKENS]
                counts[TOKENS] += 1
                serials[arc.next] = target + shift
                token_states[target] = arc.next
                extras[target] = 0.0
                if arc.epsilons > 0:
                    with_epsilon[counts[EPSILONS]] = target
                    counts[EPSILONS] += 1
            elif total >= costs[target] - slack:
                continue
            costs[target] = total
            if arc.epsilons > 0:
                queue[depth] = target
                depth += 1
    return 0, 0


@njit(cache=True, nogil=True)
def _link_epsilon(graph: SearchGraph, store: Store, cutoff: float) -> Store:
    """Make the epsilon links of the last frame, now that its costs are final."""
    states, arcs, counts = graph.states, graph.arcs, store.counts
    costs, token_states, serials = store.cost, store.state, store.serial
    frame, num_links = counts[FRAMES], counts[LINKS]
    room = 0
    for i in store.with_epsilon[: counts[EPSILONS]]:
        room += states[token_states[i]].end - states[token_states[i]].middle
    store = with_room(store, links=num_links + room)
    links = store.link
    for i in store.with_epsilon[: counts[EPSILONS]]:
        if costs[i] >= cutoff:
            continue
        for a in range(states[token_states[i]].middle, states[token_states[i]].end):
            arc = arcs[a]
            if costs[i] + arc.weight >= cutoff:
                continue
            link = links[num_links]
            link.source = i
            link.target = serials[arc.next] - counts[SHIFT]
            link.arc = a
            link.weight = arc.weight
            link.acoustic = 0.0
            num_links += 1
    counts[LINKS] = num_links
    store.emitting_begin[frame] = num_links
    store.token_begin[frame + 1] = counts[TOKENS]
    return store
