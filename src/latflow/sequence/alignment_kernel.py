"""Numba kernel: the Viterbi search through a training graph, given all scores.

The twin of `latflow.gmm.viterbi_kernel`, which computes scores of mixtures as the
search asks for them; a network has scored every pdf of every frame before the search
begins. Live states, back pointers and the rules of the search are those of that module.

Source: Kaldi `decoder/faster-decoder.cc`, `bin/align-compiled-mapped.cc`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.gmm.viterbi_kernel import (
    empty_list,
    follow_epsilons,
    no_back_pointers,
    states_with_epsilon,
    trace_back,
    with_room,
)


@njit(cache=True, nogil=True)
def best_path(arcs, start, final, log_likes, scale, beam):
    """Find the cheapest path that emits every frame and ends in a final state.

    A state is left out of a frame if its cost is more than `beam` above the least cost
    of the frame. Of paths of equal cost the one found first wins.

    Args:
        arcs: (arc_begin int64[S + 1], pdf int32[A], costs float32[A], next_state
            int32[A]); `pdf` is what an arc emits, -1 for nothing.
        start: the first state.
        final: float32[S], final costs, inf where a state is not final.
        log_likes: float32[T, P], acoustic log-likelihoods, natural log.
        scale: float32; emitting pdf p in frame t costs -scale * log_likes[t, p].
        beam: width of the search.

    Returns:
        (int32[T] arcs that emit, float32[T] their log-likelihoods, float64 total cost);
        no arcs and infinite cost if no final state was reached.
    """
    arc_begin, pdf = arcs[0], arcs[1]
    num_frames, num_states = len(log_likes), len(final)
    here, there = empty_list(num_states), empty_list(num_states)
    stack = (np.empty(num_states, np.int32), np.zeros(num_states, np.bool_))
    has_epsilon = states_with_epsilon(arc_begin, pdf)
    back = with_room(no_back_pointers(), num_states)
    base = 0
    here[0][0], here[1][0], here[2][start] = start, 0.0, 0
    back[0][0], back[1][0] = -1, -1
    count = follow_epsilons(arcs, has_epsilon, here, back, base, 1, beam, stack)
    for t in range(num_frames):
        back = with_room(back, base + count + num_states)
        found, cutoff = _emit(
            arcs, here, there, back, base, count, (log_likes[t], scale), beam
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
    path, path_log_likes = trace_back(back, pdf, last, num_frames)
    return path, path_log_likes, total


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
        acoustics: (float32[P] log-likelihoods of the frame, scale).
        beam: see `best_path`.

    Returns:
        (how many are live behind the frame, cost above which they may be given up).
    """
    arc_begin, pdf, costs, next_state = arcs
    log_likes, scale = acoustics
    states, cost, old_slot = here
    best = np.inf
    for i in range(count):
        best = min(best, cost[i])
        old_slot[states[i]] = -1
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
            log_like = log_likes[emitted]
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
