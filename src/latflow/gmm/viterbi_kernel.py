"""Numba kernel of the Viterbi search through one graph.

Arrays of a search: `live` is (state int32[S], cost float64[S], slot int32[S]): the live
states of a frame as a list, their costs, and the place of every state in the list, -1
if it is not live. `back` is (source int32[N], arc int32[N], log_like float32[N]): for
every list entry of every frame the entry it came from, -1 at the start, the arc taken,
and the acoustic log-likelihood of that arc, meaningless if it emits nothing.

Log-likelihoods are computed when they are asked for: see `lazy_scores`.

Source: Kaldi `decoder/faster-decoder.cc`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.gmm.lazy_scores import WIDTH, fill, new_book, open_tile

_FIRST_SIZE = 4096  # places for back pointers at first


@njit(cache=True, nogil=True)
def best_path(arcs, start, final, acoustics, beam):
    """Find the cheapest path that emits every frame and ends in a final state.

    A state is left out of a frame if its cost is more than `beam` above the least cost
    of the frame. Of paths of equal cost the one found first wins.

    Args:
        arcs: (arc_begin int64[S + 1], pdf int32[A], costs float32[A], next_state
            int32[A]); `pdf` is what an arc emits, -1 for nothing.
        start: the first state.
        final: float32[S], final costs, inf where a state is not final.
        acoustics: (x float32[T, D], mixtures as in `lazy_scores.fill`, scale float32);
            emitting a frame costs -scale * its log-likelihood.
        beam: width of the search.

    Returns:
        (int32[T] arcs that emit, float32[T] their log-likelihoods, float64 total cost);
        no arcs and infinite cost if no final state was reached.
    """
    arc_begin, pdf = arcs[0], arcs[1]
    x, mixtures, scale = acoustics
    num_frames, num_states = len(x), len(final)
    here, there = empty_list(num_states), empty_list(num_states)
    stack = (np.empty(num_states, np.int32), np.zeros(num_states, np.bool_))
    has_epsilon = states_with_epsilon(arc_begin, pdf)
    book = new_book(mixtures)
    back = with_room(no_back_pointers(), num_states)
    base = 0
    here[0][0], here[1][0], here[2][start] = start, 0.0, 0
    back[0][0], back[1][0] = -1, -1
    count = follow_epsilons(arcs, has_epsilon, here, back, base, 1, beam, stack)
    for t in range(num_frames):
        if t % WIDTH == 0:
            open_tile(book, x, t)
        back = with_room(back, base + count + num_states)
        found, cutoff = _emit(
            arcs, here, there, back, base, count, (book, mixtures, scale, t), beam
        )
        base += count
        count = follow_epsilons(
            arcs, has_epsilon, there, back, base, found, cutoff, stack
        )
        here, there = there, here
    states, cost, _ = here
    last, total = -1, np.inf
    for i in range(count):
        if cost[i] + final[states[i]] < total:
            last, total = base + i, cost[i] + final[states[i]]
    path, log_likes = trace_back(back, pdf, last, num_frames)
    return path, log_likes, total


@njit(cache=True, nogil=True)
def empty_list(num_states):
    """A list of live states, empty, with room for all."""
    return (
        np.empty(num_states, np.int32),
        np.empty(num_states, np.float64),
        np.full(num_states, np.int32(-1)),
    )


@njit(cache=True, nogil=True)
def no_back_pointers():
    """Room for the first back pointers."""
    return (
        np.empty(_FIRST_SIZE, np.int32),
        np.empty(_FIRST_SIZE, np.int32),
        np.empty(_FIRST_SIZE, np.float32),
    )


@njit(cache=True, nogil=True)
def states_with_epsilon(arc_begin, pdf):
    """For each state, whether an arc that emits nothing leaves it, bool[S]."""
    found = np.zeros(len(arc_begin) - 1, np.bool_)
    for state in range(len(found)):
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            if pdf[arc] < 0:
                found[state] = True
    return found


@njit(cache=True, nogil=True)
def with_room(back, count):
    """The back pointers, moved if they have fewer than `count` places."""
    source, arc, log_like = back
    filled = len(source)
    if count <= filled:
        return back
    size = max(count, 2 * filled)
    more_source, more_arc = np.empty(size, np.int32), np.empty(size, np.int32)
    more_log_like = np.empty(size, np.float32)
    more_source[:filled] = source
    more_arc[:filled] = arc
    more_log_like[:filled] = log_like
    return more_source, more_arc, more_log_like


@njit(cache=True, nogil=True)
def _emit(arcs, here, there, back, base, count, acoustics, beam):
    """Take the live states over one frame.

    Args:
        arcs: see `best_path`.
        here: the live states before the frame; its slots are emptied.
        there: those behind it, written; its slots are all -1 at first.
        back: back pointers, with room.
        base: where the entries of `here` begin in `back`.
        count: how many are live before.
        acoustics: (book, mixtures, scale, number of the frame).
        beam: see `best_path`.

    Returns:
        (how many are live behind the frame, cost above which they may be given up).
    """
    arc_begin, pdf, costs, next_state = arcs
    book, mixtures, scale, t = acoustics
    log_likes, lane = book[0], t % WIDTH
    states, cost, old_slot = here
    best = np.inf
    for i in range(count):
        best = min(best, cost[i])
        old_slot[states[i]] = -1
    _fill_needed(arcs, states[:count], cost, best + beam, book, t // WIDTH, mixtures)
    new_states, new_cost, slot = there
    source, arc_of, log_like_of = back
    found = 0
    next_cutoff = np.inf
    for i in range(count):
        if cost[i] > best + beam:
            continue
        for arc in range(arc_begin[states[i]], arc_begin[states[i] + 1]):
            emitted = pdf[arc]
            if emitted < 0:
                continue
            log_like = log_likes[emitted, lane]
            new = cost[i] + costs[arc] - scale * log_like
            if new > next_cutoff:
                continue
            next_cutoff = min(next_cutoff, new + beam)
            target = next_state[arc]
            j = slot[target]
            if j < 0:
                j = found
                found += 1
                slot[target] = j
                new_states[j] = target
            elif new >= new_cost[j]:
                continue
            new_cost[j] = new
            source[base + count + j] = base + i
            arc_of[base + count + j] = arc
            log_like_of[base + count + j] = log_like
    return found, next_cutoff


@njit(cache=True, nogil=True)
def _fill_needed(arcs, states, cost, cutoff, book, tile, mixtures):
    """Evaluate what the arcs of the live states emit, where that is not yet done.

    Apart from the search's own loop, which is faster without a call in it.
    """
    arc_begin, pdf = arcs[0], arcs[1]
    filled = book[1]
    for i in range(len(states)):
        if cost[i] > cutoff:
            continue
        for arc in range(arc_begin[states[i]], arc_begin[states[i] + 1]):
            emitted = pdf[arc]
            if emitted >= 0 and filled[emitted] != tile:
                fill(book, tile, mixtures, emitted)


@njit(cache=True, nogil=True)
def follow_epsilons(arcs, has_epsilon, live, back, base, count, cutoff, stack):
    """Extend the live states of a frame by arcs that emit nothing.

    Args:
        arcs: see `best_path`.
        has_epsilon: bool[S], states that such arcs leave.
        live: the live states, extended.
        back: back pointers, with room.
        base: where the entries of `live` begin in `back`.
        count: how many are live.
        cutoff: cost above which a state is not made live.
        stack: (int32[S], bool[S] all False), scratch.

    Returns:
        How many are live now.
    """
    arc_begin, pdf, costs, next_state = arcs
    states, cost, slot = live
    waiting, is_waiting = stack
    depth = 0
    for i in range(count - 1, -1, -1):
        if has_epsilon[states[i]]:
            waiting[depth] = i
            is_waiting[i] = True
            depth += 1
    while depth:
        depth -= 1
        i = waiting[depth]
        is_waiting[i] = False
        for arc in range(arc_begin[states[i]], arc_begin[states[i] + 1]):
            new = cost[i] + costs[arc]
            if pdf[arc] >= 0 or new > cutoff:
                continue
            target = next_state[arc]
            j = slot[target]
            if j < 0:
                j = count
                count += 1
                slot[target] = j
                states[j] = target
            elif new >= cost[j]:
                continue
            cost[j] = new
            back[0][base + j] = base + i
            back[1][base + j] = arc
            if has_epsilon[target] and not is_waiting[j]:
                waiting[depth] = j
                is_waiting[j] = True
                depth += 1
    return count


@njit(cache=True, nogil=True)
def trace_back(back, pdf, last, num_frames):
    """Emitting arcs of the path that ends in entry `last`, and their log-likelihoods.

    Both are empty if `last` is -1.
    """
    source, arc_of, log_like_of = back
    t = num_frames if last >= 0 else 0
    path, log_likes = np.empty(t, np.int32), np.empty(t, np.float32)
    while last >= 0 and arc_of[last] >= 0:
        if pdf[arc_of[last]] >= 0:
            t -= 1
            path[t], log_likes[t] = arc_of[last], log_like_of[last]
        last = source[last]
    return path, log_likes
