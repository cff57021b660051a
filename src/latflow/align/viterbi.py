"""The Viterbi search over a training graph, compiled.

It keeps a list of live states for each frame and never looks at others, so that its
cost follows the beam and not the size of the graph. Arrays of a search: `live` is
(state int32[S], cost float64[S], slot int32[S]): the live states of a frame as a list,
their costs, and the index of every state in the list, -1 if it is not live. `back` is
(source int32[N], arc int32[N], log_like float32[N]): for every list entry of every
frame the entry it came from, -1 at the start, the arc taken, and the acoustic
log-likelihood of that arc, meaningless if it emits nothing.

Scores come from a *provider*, which is asked in each frame for the pdfs that the live
states emit: a matrix of them all (float32[T, P], of a network), or a type that
computes them when asked (`latflow.gmm.alignment`). A provider is a type for
which `frame_scores` has an overload; the search is compiled for each.

Source: Kaldi `decoder/faster-decoder.cc`.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from latflow.jit import njit

BACK_BYTES = 12  # of a back pointer
_FIRST_SIZE = 4096  # back pointers at first


def frame_scores(scores, t, live):
    """Return the log-likelihoods of a frame, where live states need them.

    Called from compiled code alone, once a frame, for frames in order.

    Args:
        live: (arcs, see `best_path`; int32[N], the live states; float64[N] or longer,
            their costs; the cost above which a state emits nothing).

    Returns:
        float32[P]; what the arcs of other states emit need not be there.
    """
    raise NotImplementedError


@overload(frame_scores, inline="always")
def _matrix_scores(scores, t, live):  # noqa: ARG001
    """Take a row of a matrix that holds all scores."""
    if not isinstance(scores, types.Array):
        return None
    return lambda scores, t, live: scores[t]  # noqa: ARG005


@njit(cache=True, nogil=True)
def best_path(arcs, start, final, scores, num_frames, scale, beam, max_back):
    """Find the cheapest path that emits every frame and ends in a final state.

    A state is left out of a frame if its cost is more than `beam` above the least cost
    of the frame. Of paths of equal cost the one found first wins.

    Args:
        arcs: (arc_begin int64[S + 1], pdf int32[A], costs float32[A], next_state
            int32[A]); `pdf` is what an arc emits, -1 for nothing.
        final: float32[S], final costs, inf where a state is not final.
        scores: the provider, see `frame_scores`.
        num_frames: T.
        scale: float32; emitting a frame costs -scale * its log-likelihood.
        max_back: back pointers that may be kept; beyond, the search is given up.

    Returns:
        (int32[T] arcs that emit, float32[T] their log-likelihoods, float64 total cost);
        no arcs and infinite cost if no final state was reached.
    """
    arc_begin, pdf = arcs[0], arcs[1]
    num_states = len(final)
    here, there = _empty_list(num_states), _empty_list(num_states)
    stack = (np.empty(num_states, np.int32), np.zeros(num_states, np.bool_))
    has_epsilon = _states_with_epsilon(arc_begin, pdf)
    back = _enlarged(_no_back_pointers(), num_states)
    base = 0
    here[0][0], here[1][0], here[2][start] = start, 0.0, 0
    back[0][0], back[1][0] = -1, -1
    count = _follow_epsilons(arcs, has_epsilon, here, back, base, 1, beam, stack)
    for t in range(num_frames):
        if base + count + num_states > max_back:
            count = 0
            break
        back = _enlarged(back, base + count + num_states)
        found, cutoff = _emit(
            arcs, here, there, back, base, count, (scores, t, scale), beam
        )
        base += count
        count = _follow_epsilons(
            arcs, has_epsilon, there, back, base, found, cutoff, stack
        )
        here, there = there, here
    states, cost, _ = here
    last, total = -1, np.inf
    for i in range(count):
        if cost[i] + final[states[i]] < total:
            last, total = base + i, cost[i] + final[states[i]]
    path, log_likes = _trace_back(back, pdf, last, num_frames)
    return path, log_likes, total


@njit(cache=True, nogil=True)
def _empty_list(num_states):
    """Return a list of live states, empty, large enough for all."""
    return (
        np.empty(num_states, np.int32),
        np.empty(num_states, np.float64),
        np.full(num_states, np.int32(-1)),
    )


@njit(cache=True, nogil=True)
def _no_back_pointers():
    """Return arrays for the first back pointers."""
    return (
        np.empty(_FIRST_SIZE, np.int32),
        np.empty(_FIRST_SIZE, np.int32),
        np.empty(_FIRST_SIZE, np.float32),
    )


@njit(cache=True, nogil=True)
def _states_with_epsilon(arc_begin, pdf):
    """Mark the states that an arc leaves which emits nothing, bool[S]."""
    found = np.zeros(len(arc_begin) - 1, np.bool_)
    for state in range(len(found)):
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            if pdf[arc] < 0:
                found[state] = True
    return found


@njit(cache=True, nogil=True)
def _enlarged(back, count):
    """Return back pointers for `count` entries: these, or larger copies of them."""
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
        back: back pointers, large enough.
        base: where the entries of `here` begin in `back`.
        count: how many are live before.
        acoustics: (provider of scores, the frame, scale).
        beam: see `best_path`.

    Returns:
        (how many are live behind the frame, cost above which they may be given up).
    """
    arc_begin, pdf, costs, next_state = arcs
    scores, t, scale = acoustics
    states, cost, old_slot = here
    best = np.inf
    for i in range(count):
        best = min(best, cost[i])
        old_slot[states[i]] = -1
    log_likes = frame_scores(scores, t, (arcs, states[:count], cost, best + beam))
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


@njit(cache=True, nogil=True)
def _follow_epsilons(arcs, has_epsilon, live, back, base, count, cutoff, stack):
    """Extend the live states of a frame by arcs that emit nothing.

    Args:
        arcs: see `best_path`.
        has_epsilon: bool[S], states that such arcs leave.
        live: the live states, extended.
        back: back pointers, large enough.
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
def _trace_back(back, pdf, last, num_frames):
    """Return the emitting arcs of the path to entry `last`, and their log-likelihoods.

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
