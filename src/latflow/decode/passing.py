"""Token passing: one frame of the search after the other.

At each frame every token within the cutoff follows the arcs that consume the frame,
then all tokens follow epsilon arcs. The cutoff of a frame is the best cost plus the
beam, lower where more than `max_active` tokens are within it, higher where fewer than
`min_active` are; the cutoff of the next frame falls while arcs are followed.

Costs are float64 and include all frames so far; Kaldi subtracts the best cost at each
frame because it adds up in float32. Kaldi follows tokens in the order of a hash table,
here they are followed in the order in which they were made; the tokens that survive may
differ where the cutoff of the next frame has not settled, far from the best path.

Source: Kaldi `decoder/lattice-faster-decoder.cc` (`GetCutoff`, `ProcessEmitting`,
`ProcessNonemitting`, `FindOrAddToken`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.decode.composition import is_composed, load, make_arcs, make_arcs_within
from latflow.decode.parts import HAS_EPSILON, STATE_BITS, Records
from latflow.decode.search_graph import SearchGraph
from latflow.decode.tokens import (
    BASE,
    EXPANDED,
    FRAMES,
    LINKS,
    NUM_EPSILON,
    TOKENS,
    Scratch,
    Store,
    prefetch,
    with_capacity,
    with_queue,
)
from latflow.jit import njit

# Epsilon cycles whose weights should add up to 0 may add up to a little less in
# float32; going round for less than this is no improvement.
_CYCLE_SLACK = 1e-5
_LATEST = 1 << 30  # serials begin again when they come to this
_AHEAD = 8  # tokens whose arcs are asked for early; twice as many for their states


class SearchLimits(NamedTuple):
    """Limits of the search.

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


class Walk(NamedTuple):
    """Arrays of a `SearchGraph` that tokens walk on.

    Numba passes a tuple to a function number by number. Those of a composition are
    hundreds, which would take a quarter of the time of a search in a small graph.
    """

    states: Records
    arcs: Records
    is_made: np.ndarray
    has_epsilon_cycle: bool


@njit(cache=True, nogil=True)
def _walk_on(graph: SearchGraph) -> Walk:
    return Walk(
        graph.states, graph.arcs, graph.composition.is_made, graph.has_epsilon_cycle
    )


@njit(cache=True, nogil=True)
def begin(
    graph: SearchGraph, store: Store, scratch: Scratch, limits: SearchLimits
) -> tuple[Store, Scratch]:
    """Start an utterance: the start state and what epsilon arcs reach from it."""
    store.counts[:] = 0
    store.counts[TOKENS] = 1
    store.token_begin[0], store.epsilon_begin[0] = 0, 0
    store.cost[0], store.state[0] = 0.0, graph.start
    if is_composed(graph.composition):
        make_arcs(graph.composition, graph.start)
    scratch.serial[graph.start] = scratch.clock[BASE]
    scratch.with_epsilon[0] = 0
    walk = _walk_on(graph)
    scratch.clock[NUM_EPSILON] = _num_epsilon(walk, graph.start) > 0
    return _settle(graph, walk, store, scratch, limits.beam)


@njit(cache=True, nogil=True)
def advance(
    graph: SearchGraph,
    store: Store,
    scratch: Scratch,
    limits: SearchLimits,
    log_likes: np.ndarray,
    acoustic_scale: float,
) -> tuple[Store, Scratch]:
    """Search through the next frames.

    Args:
        graph: the packed graph.
        store: what the search holds; it may be changed in place.
        scratch: likewise.
        limits: beams.
        log_likes: float32[T, P]; -inf is allowed.
        acoustic_scale: factor on them.

    Returns:
        Store and scratch after T frames, or after fewer where no token survived: then
        the last frame has no tokens.

    Raises:
        MemoryError: there is too little, or the store would be larger than it may; then
            both are half done.
    """
    walk = _walk_on(graph)
    store = with_capacity(store, frames=store.counts[FRAMES] + len(log_likes))
    for t in range(len(log_likes)):
        first, last = store.token_begin[store.counts[FRAMES]], store.counts[TOKENS]
        if first == last:
            break
        costs = store.cost[first:last]
        least, cutoff, beam = _cutoff(costs, limits)
        if is_composed(graph.composition):
            make_arcs_within(graph.composition, store.state[first:last], costs, cutoff)
        store, scratch, bound = _follow_emitting(
            walk, store, scratch, (least, cutoff, beam), log_likes[t], acoustic_scale
        )
        store, scratch = _settle(graph, walk, store, scratch, bound)
    return store, scratch


@njit(cache=True, nogil=True)
def _settle(
    graph: SearchGraph, walk: Walk, store: Store, scratch: Scratch, cutoff: float
) -> tuple[Store, Scratch]:
    """Follow epsilon arcs from the last frame's tokens, then make their links."""
    depth = scratch.clock[NUM_EPSILON]
    for i in range(depth):
        scratch.queue[i] = scratch.with_epsilon[i]
    store, scratch, depth = _follow_epsilon(walk, store, scratch, cutoff, depth)
    while depth > 0:
        last = store.token_begin[store.counts[FRAMES]] + scratch.queue[depth - 1]
        make_arcs(graph.composition, np.int64(store.state[last]))
        store, scratch, depth = _follow_epsilon(walk, store, scratch, cutoff, depth)
    return _link_epsilon(walk, store, scratch, cutoff), scratch


@njit(cache=True, nogil=True)
def _num_epsilon(walk: Walk, state: np.integer | int) -> np.integer:
    return np.int64(walk.states[state + 1].begin) - walk.states[state].middle


# The flags promise only that costs are never NaN; a vector instruction does the rest.
@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _least(cost: np.ndarray) -> float:
    least = np.inf
    for i in range(len(cost)):
        least = min(least, cost[i])
    return least


@njit(cache=True, nogil=True)
def _cutoff(cost: np.ndarray, limits: SearchLimits) -> tuple[float, float, float]:
    """Return the best cost, the cutoff of its frame, and the beam for the next.

    With n tokens in ascending order of cost, the cutoff is that of token max_active
    where it is below best + beam, and that of token min_active where it is above.
    """
    best = _least(cost)
    bound = best + limits.beam
    below, within = 0, 0
    for i in range(len(cost)):
        below += cost[i] < bound
        within += cost[i] <= bound
    if below > limits.max_active:
        cutoff = np.partition(cost, limits.max_active)[limits.max_active]
        return best, cutoff, cutoff - best + limits.beam_delta
    if within <= limits.min_active:
        if len(cost) <= limits.min_active:
            return best, np.inf, np.inf
        cutoff = np.partition(cost, limits.min_active)[limits.min_active]
        return best, cutoff, cutoff - best + limits.beam_delta
    return best, bound, limits.beam


@njit(cache=True, nogil=True)
def _next_bound(
    walk: Walk,
    state: np.integer,
    cost: float,
    log_likes: np.ndarray,
    acoustic_scale: float,
) -> float:
    """Return the least cost at the next frame among the arcs of one token."""
    least = np.inf
    for a in range(walk.states[state].begin, walk.states[state].middle):
        arc = walk.arcs[a]
        total = cost + (arc.weight - acoustic_scale * log_likes[arc.pdf])
        least = min(least, total)
    return least


@njit(cache=True, nogil=True)
def _follow_emitting(
    walk: Walk,
    store: Store,
    scratch: Scratch,
    limits: tuple[float, float, float],
    log_likes: np.ndarray,
    acoustic_scale: float,
) -> tuple[Store, Scratch, float]:
    """Follow the arcs that consume a frame; also return the cutoff of the new frame.

    Args:
        walk: has the arcs of all tokens within the cutoff.
        store: changed in place.
        scratch: likewise.
        limits: what `_cutoff` gives for the last frame.
        log_likes: float32[P] of the new frame.
        acoustic_scale: factor on them.
    """
    counts = store.counts
    frame = counts[FRAMES]
    first, last = store.token_begin[frame], counts[TOKENS]
    least, cutoff, beam = limits
    best = first
    while store.cost[best] != least:
        best += 1
    bound = beam + _next_bound(
        walk, np.int64(store.state[best]), least, log_likes, acoustic_scale
    )
    at, num_links = 0, int(counts[LINKS])
    while at < last - first:
        bounds = (cutoff, bound, beam)
        at, num_links, bound = _score_arcs(
            walk, store, scratch, (at, num_links), bounds, log_likes, acoustic_scale
        )
        if at < last - first:
            state = walk.states[store.state[first + at]]
            needed = np.int64(state.middle) - state.begin
            store = with_capacity(store, links=num_links + needed)
    reached = min(num_links - counts[LINKS], len(walk.states) - 1) + 1
    store = with_capacity(store, tokens=last + reached)
    scratch = with_queue(scratch, reached)
    _join(store, scratch, num_links)
    counts[FRAMES] = frame + 1
    store.token_begin[frame + 1] = last
    store.epsilon_begin[frame + 1] = num_links
    return store, scratch, bound


@njit(cache=True, nogil=True)
def _score_arcs(
    walk: Walk,
    store: Store,
    scratch: Scratch,
    at: tuple[int, int],
    bounds: tuple[float, float, float],
    log_likes: np.ndarray,
    acoustic_scale: float,
) -> tuple[int, int, float]:
    """Make a link of each arc that stays within the cutoff of the next frame.

    The links have the code of a graph state (`SearchGraph.arcs`) for their target; it
    is for `_join` to make tokens of them. Every arc is written down, and counted if it
    is good: there is no branch that the processor could guess wrong.

    Args:
        walk: the arcs.
        store: its links are changed in place.
        scratch: for its serials, which `_join` will want.
        at: token of the frame to begin with, links so far.
        bounds: cutoff of this frame, of the next so far, and beam from this to that.
        log_likes: float32[P] of the frame.
        acoustic_scale: factor on them.

    Returns:
        (token whose links have no space, or number of tokens; links; cutoff of the
        next frame).
    """
    first_token, num_links = at
    cutoff, bound, beam = bounds
    states, arcs, links = walk.states, walk.arcs, store.link
    first, last = store.token_begin[store.counts[FRAMES]], store.counts[TOKENS]
    costs, token_states = store.cost[first:last], store.state[first:last]
    num_expanded = 0
    i = first_token
    while i < len(costs):
        if i + 2 * _AHEAD < len(costs):
            prefetch(states, np.int64(token_states[i + 2 * _AHEAD]))
            prefetch(arcs, np.int64(states[token_states[i + _AHEAD]].begin))
        cost = costs[i]
        if cost <= cutoff:
            state = np.int64(token_states[i])
            begin, end = np.int64(states[state].begin), np.int64(states[state].middle)
            if num_links + end - begin > len(links):
                break
            num_expanded += 1
            for a in range(begin, end):
                arc = arcs[a]
                prefetch(scratch.serial, np.int64(arc.code & STATE_BITS))
                log_like = log_likes[arc.pdf]
                total = cost + (arc.weight - acoustic_scale * log_like)
                link = links[num_links]
                link.source, link.target, link.arc = i, arc.code, a
                link.acoustic, link.total = -log_like, total
                num_links += total < bound
                bound = min(bound, total + beam)
        i += 1
    store.counts[EXPANDED] += num_expanded
    return i, num_links, bound


@njit(cache=True, nogil=True)
def _join(store: Store, scratch: Scratch, end: int) -> None:
    """Make the tokens of the next frame: links to the same graph state meet in one.

    Args:
        store: changed in place, with needed; its links from counts[LINKS] on are new.
        scratch: changed in place.
        end: where the new links end.
    """
    counts, clock = store.counts, scratch.clock
    serials, with_epsilon, links = scratch.serial, scratch.with_epsilon, store.link
    first, base = counts[TOKENS], clock[BASE]
    costs, token_states = store.cost[first:], store.state[first:]
    num_tokens, num_epsilon = 0, 0
    for at in range(counts[LINKS], end):
        link = links[at]
        code = link.target
        state = np.int64(code & STATE_BITS)
        known = serials[state] - base
        is_new = known < 0
        target = num_tokens if is_new else known
        cost = np.inf if is_new else costs[target]
        serials[state] = target + base
        token_states[target] = state
        costs[target] = min(cost, link.total)
        with_epsilon[num_epsilon] = target
        num_epsilon += is_new & (code >= HAS_EPSILON)
        num_tokens += is_new
        link.target = target
    counts[TOKENS], counts[LINKS] = first + num_tokens, end
    clock[NUM_EPSILON] = num_epsilon


@njit(cache=True, nogil=True)
def _follow_epsilon(
    walk: Walk, store: Store, scratch: Scratch, cutoff: float, depth: int
) -> tuple[Store, Scratch, int]:
    """Follow epsilon arcs from queued tokens; make space for what they reach.

    Returns:
        (store; scratch; 0, or how many tokens are queued where the next one has arcs
        that are to be composed).
    """
    while depth > 0:
        depth, needed = _relax(walk, store, scratch, cutoff, depth)
        if needed < 0:
            break
        if depth > 0:
            store = with_capacity(store, tokens=store.counts[TOKENS] + needed)
            queued = max(depth, scratch.clock[NUM_EPSILON]) + needed
            scratch = with_queue(scratch, queued)
    return store, scratch, depth


@njit(cache=True, nogil=True)
def _relax(
    walk: Walk, store: Store, scratch: Scratch, cutoff: float, depth: int
) -> tuple[int, int]:
    """Pass costs on along epsilon arcs until no queued token or no space is left.

    Or until the next queued token has arcs that are to be composed.

    Args:
        walk: the arcs.
        store: changed in place.
        scratch: likewise.
        cutoff: of the last frame.
        depth: tokens queued.

    Returns:
        (tokens queued; space needed to continue, in tokens, -1 where arcs are).
    """
    states, arcs, counts, clock = walk.states, walk.arcs, store.counts, scratch.clock
    serials, with_epsilon, queue = scratch.serial, scratch.with_epsilon, scratch.queue
    first, base = store.token_begin[counts[FRAMES]], clock[BASE]
    costs, token_states = store.cost[first:], store.state[first:]
    num_tokens, num_epsilon, needed = counts[TOKENS] - first, int(clock[NUM_EPSILON]), 0
    slack = _CYCLE_SLACK if walk.has_epsilon_cycle else 0.0
    may_lack_arcs, is_made = len(walk.is_made) > 0, walk.is_made
    while depth > 0:
        i = queue[depth - 1]
        state, cost = np.int64(token_states[i]), costs[i]
        lacks_arcs = may_lack_arcs and cost < cutoff and not load(is_made, state >> 1)
        needed = -1 if lacks_arcs else _num_epsilon(walk, state)
        is_tight = max(depth, num_epsilon) + needed > len(queue)
        if lacks_arcs or is_tight or num_tokens + needed > len(costs):
            break
        depth -= 1
        if cost >= cutoff:
            continue
        for a in range(states[state].middle, states[state + 1].begin):
            arc = arcs[a]
            total = cost + arc.weight
            if total >= cutoff:
                continue
            to = np.int64(arc.code & STATE_BITS)
            target = serials[to] - base
            if target < 0:
                target = num_tokens
                num_tokens += 1
                serials[to] = target + base
                token_states[target] = to
                if arc.code >= HAS_EPSILON:
                    with_epsilon[num_epsilon] = target
                    num_epsilon += 1
            elif total >= costs[target] - slack:
                continue
            costs[target] = total
            if arc.code >= HAS_EPSILON:
                queue[depth] = target
                depth += 1
    counts[TOKENS], clock[NUM_EPSILON] = first + num_tokens, num_epsilon
    return depth, int(needed)


@njit(cache=True, nogil=True)
def _link_epsilon(walk: Walk, store: Store, scratch: Scratch, cutoff: float) -> Store:
    """Make the epsilon links of the last frame, now that its costs are final."""
    states, arcs, counts, clock = walk.states, walk.arcs, store.counts, scratch.clock
    frame, num_links, base = counts[FRAMES], int(counts[LINKS]), clock[BASE]
    first, serials = store.token_begin[frame], scratch.serial
    costs, token_states = store.cost[first:], store.state[first:]
    sources = scratch.with_epsilon[: clock[NUM_EPSILON]]
    needed = 0
    for i in sources:
        needed += _num_epsilon(walk, np.int64(token_states[i]))
    store = with_capacity(store, links=num_links + needed)
    links = store.link
    for i in sources:
        cost = costs[i]
        if cost >= cutoff:
            continue
        state = np.int64(token_states[i])
        for a in range(states[state].middle, states[state + 1].begin):
            arc = arcs[a]
            total = cost + arc.weight
            if total >= cutoff:
                continue
            link = links[num_links]
            link.source, link.arc = i, a
            link.target = serials[np.int64(arc.code & STATE_BITS)] - base
            link.acoustic, link.total = 0.0, total
            num_links += 1
    counts[LINKS] = num_links
    store.emitting_begin[frame] = num_links
    store.token_begin[frame + 1] = counts[TOKENS]
    _outdate_serials(scratch, counts[TOKENS] - first)
    return store


@njit(cache=True, nogil=True)
def _outdate_serials(scratch: Scratch, num_tokens: int) -> None:
    """End a frame of this many tokens: no serial given so far will count any more."""
    clock = scratch.clock
    clock[BASE] += num_tokens
    if clock[BASE] > _LATEST:
        scratch.serial[:] = 0
        clock[BASE] = 1
