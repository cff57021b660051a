"""Kernels of lattices: order and time of states, connection, conversion.

`Lattice` and `CompactLattice` of `latflow.lattice.lattice` call them: `from_arcs`
sorts states and counts frames, `connected` leaves out dead ends, `to_compact` and
`to_lattice` convert one into the other.

Source: Kaldi `fstext/factor-inl.h` (`Factor`), `fstext/lattice-utils-inl.h`.
"""

from __future__ import annotations

import heapq

import numpy as np

from latflow.jit import njit

Arrays = tuple[np.ndarray, np.ndarray]


def arc_offsets(source: np.ndarray, num_states: int) -> np.ndarray:
    """Return where the arcs of each state begin once sorted by source, int64[S + 1].

    Args:
        source: int[A], the state that each arc leaves.
        num_states: S.
    """
    counts = np.bincount(source, minlength=num_states)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@njit(cache=True, nogil=True)
def topological_order(
    arc_begin: np.ndarray, next_state: np.ndarray, start: int
) -> np.ndarray:
    """Sort the states that can be reached so that every arc leads forward.

    The order of the state numbers is kept where it is a topological one already: among
    the states that may come next, the lowest is taken.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        start: the first state.

    Returns:
        int32[R], the R reachable states in order; empty if the arcs form a cycle.
    """
    num_states = len(arc_begin) - 1
    pending = np.full(num_states, -1, np.int32)  # arcs in, from reachable states
    stack = np.empty(num_states, np.int32)
    if num_states == 0:
        return stack
    stack[0], height, reachable = start, 1, 1
    pending[start] = 0
    while height > 0:
        height -= 1
        state = stack[height]
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            target = next_state[arc]
            if pending[target] < 0:
                pending[target] = 0
                stack[height] = target
                height += 1
                reachable += 1
            pending[target] += 1
    if pending[start] > 0:
        return stack[:0]
    return _kahn(arc_begin, next_state, pending, start, reachable)


@njit(cache=True, nogil=True)
def _kahn(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    pending: np.ndarray,
    start: int,
    reachable: int,
) -> np.ndarray:
    """Take states whose incoming arcs are all done, lowest number first."""
    order = np.empty(reachable, np.int32)
    heap = [np.int32(start)]
    done = 0
    while heap:
        state = heapq.heappop(heap)
        order[done] = state
        done += 1
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            target = next_state[arc]
            pending[target] -= 1
            if pending[target] == 0:
                heapq.heappush(heap, target)
    return order if done == reachable else order[:0]


@njit(cache=True, nogil=True)
def state_frames(
    arc_begin: np.ndarray, next_state: np.ndarray, arc_frames: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Count the frames consumed from the start to each state.

    Args:
        arc_begin: int64[S + 1], of a lattice whose states are in topological order.
        next_state: int32[A].
        arc_frames: int32[A], frames that each arc consumes.

    Returns:
        (int32[S]; whether all paths to each state agree).
    """
    num_states = len(arc_begin) - 1
    frame = np.full(num_states, -1, np.int32)
    if num_states:
        frame[0] = 0
    is_consistent = True
    for state in range(num_states):
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            then = frame[state] + arc_frames[arc]
            target = next_state[arc]
            if frame[target] < 0:
                frame[target] = then
            elif frame[target] != then:
                is_consistent = False
    return frame, is_consistent


@njit(cache=True, nogil=True)
def connect(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    is_kept: np.ndarray,
    is_end: np.ndarray,
) -> np.ndarray:
    """Find the states on whole paths of kept arcs, bool[S] (OpenFst's `Connect`).

    Args:
        arc_begin: int64[S + 1], of states in topological order, 0 the start.
        next_state: int32[A].
        is_kept: bool[A]; arcs that lie on no whole path are unset.
        is_end: bool[S], states where paths end; those that are not reached are unset.
    """
    num_states = len(is_end)
    is_reached = np.zeros(num_states, np.bool_)
    is_reached[:1] = True
    for s in range(num_states):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            is_kept[arc] &= is_reached[s]
            is_reached[next_state[arc]] |= is_kept[arc]
        is_end[s] &= is_reached[s]
    is_needed = is_end.copy()
    for s in range(num_states - 1, -1, -1):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            is_kept[arc] &= is_needed[next_state[arc]]
            is_needed[s] |= is_kept[arc]
    return is_needed


@njit(cache=True, nogil=True)
def expand_strings(
    arcs: tuple[np.ndarray, np.ndarray, np.ndarray],
    costs: np.ndarray,
    strings: Arrays,
    final_costs: np.ndarray,
    final_strings: Arrays,
    frame: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Give each transition-id of a compact lattice an arc of its own.

    Args:
        arcs: arc_begin int64[S + 1], next_state int32[A], word int32[A]; states in
            topological order.
        costs: float32[2, A], graph and acoustic.
        strings: offsets int64[A + 1] and transition-ids of the arcs.
        final_costs: float32[2, S].
        final_strings: the same of the final states.
        frame: int32[S].

    Returns:
        int32[3, B] target, transition-id, word; float32[2, B]; float32[2, R] final
        costs; int32[R] frames; int64[R + 1] offsets of the B arcs of the R states.
    """
    arc_begin, next_state, word = arcs
    begin, ids = strings
    final_begin, final_ids = final_strings
    first, num_states, num_arcs = _numbered(arc_begin, begin, final_begin)
    columns = np.zeros((3, num_arcs), np.int32)
    new_costs = np.zeros((2, num_arcs), np.float32)
    new_finals = np.full((2, num_states), np.inf, np.float32)
    new_frame = np.zeros(num_states, np.int32)
    offsets = np.zeros(num_states + 1, np.int64)
    at = 0
    for state in range(len(frame)):
        here = first[state]
        new_frame[here] = frame[state]
        extra = here + 1
        length = final_begin[state + 1] - final_begin[state]
        rows = arc_begin[state + 1] - arc_begin[state] + (1 if length > 0 else 0)
        offsets[here] = at
        inner = at + rows  # the first arcs of all strings stand before the others
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            columns[2, at] = word[arc]
            new_costs[:, at] = costs[:, arc]
            string = ids[begin[arc] : begin[arc + 1]]
            target = first[next_state[arc]]
            tables = (columns, offsets, new_frame)
            extra, inner = _write_string(
                tables, string, (at, inner, extra, target, here)
            )
            at += 1
        if length > 0:
            new_costs[:, at] = final_costs[:, state]
            string = final_ids[final_begin[state] : final_begin[state + 1]]
            end = extra + length - 1
            new_frame[end] = frame[state] + length
            new_finals[:, end] = 0.0
            tables = (columns, offsets, new_frame)
            _, inner = _write_string(tables, string, (at, inner, extra, end, here))
            offsets[end] = inner
        else:
            new_finals[:, here] = final_costs[:, state]
        at = inner
    offsets[num_states] = at
    return columns, new_costs, new_finals, new_frame, offsets


@njit(cache=True, nogil=True)
def _numbered(
    arc_begin: np.ndarray, begin: np.ndarray, final_begin: np.ndarray
) -> tuple[np.ndarray, int, int]:
    """Number the states of the result: (new number of each; states; arcs in all)."""
    num_states = len(final_begin) - 1
    first = np.zeros(num_states, np.int32)
    states, arcs = 0, 0
    for state in range(num_states):
        first[state] = states
        length = final_begin[state + 1] - final_begin[state]
        states += 1 + length
        arcs += length
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            length = max(1, begin[arc + 1] - begin[arc])
            states += length - 1
            arcs += length
    return first, states, arcs


@njit(cache=True, nogil=True)
def _write_string(
    tables: tuple[np.ndarray, np.ndarray, np.ndarray],
    string: np.ndarray,
    at: tuple[int, int, int, int, int],
) -> tuple[int, int]:
    """Write a linear path with these transition-ids, and the states inside it.

    Args:
        tables: columns, offsets and frames, filled in place.
        string: transition-ids; one arc without any if empty.
        at: the first arc, the next free arc and state, target and source.

    Returns:
        The next free state and arc.
    """
    columns, offsets, frame = tables
    arc, inner, state, target, source = at
    for k in range(max(1, len(string))):
        is_last = k + 1 >= len(string)
        columns[0, arc] = target if is_last else state
        columns[1, arc] = string[k] if len(string) else 0
        if not is_last:
            frame[state] = frame[source] + k + 1
            offsets[state] = inner
            arc = inner
            inner += 1
            state += 1
    return state, inner


@njit(cache=True, nogil=True)
def collapse_linear_paths(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    transition_id: np.ndarray,
    word: np.ndarray,
    costs: np.ndarray,
    is_final: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Arrays]:
    """Make one arc of each path without a choice or a word in its middle.

    Args:
        arc_begin: int64[S + 1], of states in topological order, all reachable.
        next_state: int32[A].
        transition_id: int32[A]; 0 for none.
        word: int32[A]; 0 for none.
        costs: float32[2, A], graph and acoustic.
        is_final: bool[S].

    Returns:
        int32[R], the states that are left, in their new order; int64[R + 1] offsets of
        their arcs; int32[2, B] target, word; float32[2, B] costs; offsets int64[B + 1]
        and transition-ids of the arcs.
    """
    is_inner = _inner_states(arc_begin, next_state, word, is_final)
    order = _depth_first(arc_begin, next_state, is_inner)
    num_arcs = 0
    position = np.full(len(is_final), -1, np.int32)
    for rank in range(len(order)):
        state = order[rank]
        position[state] = rank
        num_arcs += arc_begin[state + 1] - arc_begin[state]
    begin = np.zeros(len(order) + 1, np.int64)
    columns = np.zeros((2, num_arcs), np.int32)
    new_costs = np.zeros((2, num_arcs), np.float32)
    offsets = np.zeros(num_arcs + 1, np.int64)
    ids = np.empty(len(next_state), np.int32)
    at, filled = 0, 0
    for rank in range(len(order)):
        state = order[rank]
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            columns[1, at] = word[arc]
            link = arc
            while True:
                new_costs[:, at] += costs[:, link]
                if transition_id[link] != 0:
                    ids[filled] = transition_id[link]
                    filled += 1
                if not is_inner[next_state[link]]:
                    break
                link = arc_begin[next_state[link]]
            columns[0, at] = position[next_state[link]]
            at += 1
            offsets[at] = filled
        begin[rank + 1] = at
    return order, begin, columns, new_costs, (offsets, ids[:filled].copy())


@njit(cache=True, nogil=True)
def _inner_states(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    word: np.ndarray,
    is_final: np.ndarray,
) -> np.ndarray:
    """Find states with one arc in and one without a word out, bool[S]."""
    num_in = np.zeros(len(is_final), np.int32)
    for arc in range(len(next_state)):
        num_in[next_state[arc]] += 1
    is_inner = np.zeros(len(is_final), np.bool_)
    for state in range(1, len(is_final)):
        arc = arc_begin[state]
        has_one_out = arc_begin[state + 1] - arc == 1 and word[arc] == 0
        is_inner[state] = has_one_out and num_in[state] == 1 and not is_final[state]
    return is_inner


@njit(cache=True, nogil=True)
def _depth_first(
    arc_begin: np.ndarray, next_state: np.ndarray, is_inner: np.ndarray
) -> np.ndarray:
    """Sort the states that are not inner ones as OpenFst does (`TopSort`), int32[R].

    A depth-first walk from state 0 takes arcs in their order; the state that it leaves
    last comes first.
    """
    num_states = len(is_inner)
    order = np.empty(num_states, np.int32)
    free = num_states  # filled from the end
    next_arc = arc_begin[:-1].copy()
    was_seen = np.zeros(num_states, np.bool_)
    stack = np.zeros(num_states, np.int32)
    height = min(1, num_states)
    was_seen[:1] = True
    while height > 0:
        state = stack[height - 1]
        if next_arc[state] == arc_begin[state + 1]:
            free -= 1
            order[free] = state
            height -= 1
            continue
        target = next_state[next_arc[state]]
        next_arc[state] += 1
        while is_inner[target]:
            target = next_state[arc_begin[target]]
        if not was_seen[target]:
            was_seen[target] = True
            stack[height] = target
            height += 1
    return order[free:].copy()
