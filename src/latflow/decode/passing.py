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
    EXPANDED,
    FRAMES,
    KEPT,
    LINKS,
    SETTLED,
    SHIFT,
    TOKENS,
    Store,
    with_frames,
    with_links,
    with_queue,
    with_tokens,
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
    store = with_frames(store, store.counts[FRAMES] + len(log_likes))
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
    store = with_links(store, store.counts[LINKS] + reached)
    return with_tokens(store, store.counts[TOKENS] + min(reached, len(graph.states)))


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
    first, last = store.token_begin[frame], counts[TOKENS]
    best, cutoff, beam = _cutoff(store.cost[first:last], limits)
    best += first
    bound = beam + _next_bound(
        graph, store.state[best], store.cost[best], log_likes, acoustic_scale
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
    costs, token_states, links = store.cost, store.state, store.link
    counts = store.counts
    first, last = store.token_begin[counts[FRAMES]], counts[TOKENS]
    num_tokens, num_links, shift = last, counts[LINKS], counts[SHIFT]
    for i in range(first, last):
        cost = costs[i]
        if cost > cutoff:
            continue
        counts[EXPANDED] += 1
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
                serials[arc.next] = target + shift
                token_states[target] = arc.next
                costs[target] = total
                store.extra[target] = 0.0
                num_tokens += 1
            elif total < costs[target]:
                costs[target] = total
            links[num_links].source = i
            links[num_links].target = target
            links[num_links].arc = a
            links[num_links].weight = arc.weight
            links[num_links].acoustic = -log_like
            num_links += 1
    counts[TOKENS], counts[LINKS] = num_tokens, num_links
    return bound


@njit(cache=True, nogil=True)
def _follow_epsilon(graph: SearchGraph, store: Store, cutoff: float) -> Store:
    """Follow epsilon arcs from the last frame's tokens, then make their links."""
    counts = store.counts
    first, last = store.token_begin[counts[FRAMES]], counts[TOKENS]
    slack = _CYCLE_SLACK if graph.has_epsilon_cycle else 0.0
    depth = 0
    store = with_queue(store, last - first)
    states, costs, token_states, queue = (
        graph.states,
        store.cost,
        store.state,
        store.queue,
    )
    for i in range(first, last):
        state = states[token_states[i]]
        if state.middle < state.end and costs[i] < cutoff:
            queue[depth] = i
            depth += 1
    while depth > 0:
        depth -= 1
        i = store.queue[depth]
        state = states[store.state[i]]
        degree = state.end - state.middle
        if depth + degree > len(store.queue):
            store = with_queue(store, depth + degree)
        if counts[TOKENS] + degree > len(store.cost):
            store = with_tokens(store, counts[TOKENS] + degree)
        depth = _relax(graph, store, i, depth, (cutoff, slack))
    return _link_epsilon(graph, store, cutoff)


@njit(cache=True, nogil=True)
def _relax(
    graph: SearchGraph, store: Store, i: int, depth: int, limits: tuple[float, float]
) -> int:
    """Pass a token's cost on along its epsilon arcs; return the new queue length."""
    cutoff, slack = limits
    counts = store.counts
    first, shift = store.token_begin[counts[FRAMES]], counts[SHIFT]
    state = graph.states[store.state[i]]
    for a in range(state.middle, state.end):
        arc = graph.arcs[a]
        total = store.cost[i] + arc.weight
        if total >= cutoff:
            continue
        target = store.serial[arc.next] - shift
        if target < first:
            target = counts[TOKENS]
            store.serial[arc.next] = target + shift
            store.state[target] = arc.next
            store.extra[target] = 0.0
            counts[TOKENS] += 1
        elif total >= store.cost[target] - slack:
            continue
        store.cost[target] = total
        then = graph.states[arc.next]
        if then.middle < then.end:
            store.queue[depth] = target
            depth += 1
    return depth


@njit(cache=True, nogil=True)
def _link_epsilon(graph: SearchGraph, store: Store, cutoff: float) -> Store:
    """Make the epsilon links of the last frame, now that its costs are final."""
    counts = store.counts
    states, costs, token_states = graph.states, store.cost, store.state
    frame = counts[FRAMES]
    for i in range(store.token_begin[frame], counts[TOKENS]):
        state = states[token_states[i]]
        if state.middle == state.end or costs[i] >= cutoff:
            continue
        degree = state.end - state.middle
        if counts[LINKS] + degree > len(store.link):
            store = with_links(store, counts[LINKS] + degree)
        for a in range(state.middle, state.end):
            arc = graph.arcs[a]
            if store.cost[i] + arc.weight >= cutoff:
                continue
            at = counts[LINKS]
            store.link[at].source = i
            store.link[at].target = store.serial[arc.next] - counts[SHIFT]
            store.link[at].arc = a
            store.link[at].weight = arc.weight
            store.link[at].acoustic = 0.0
            counts[LINKS] = at + 1
    store.emitting_begin[frame] = counts[LINKS]
    store.token_begin[frame + 1] = counts[TOKENS]
    return store
