"""The search of pruned determinization, over `Closures` and `Pools`.

A state of the result stands for a normalized subset of end states. An arc of it is
first a *task*: a label, and the begin states that arcs with this label reach from the
subset. Tasks wait in a heap and are done in the order of the best path through them,
so that a state is first reached on its cheapest path, and whatever is left undone when
a limit stops the search costs more than all that was done.

Source: Kaldi `lat/determinize-lattice-pruned.cc` (`LatticeDeterminizerPruned`).
"""

from __future__ import annotations

import numpy as np

from latflow.jit import njit
from latflow.lattice.determinize.epsilon_closure import Closures, cost_order
from latflow.lattice.determinize.string_repository import (
    Number,
    compare_strings,
    concatenated,
)
from latflow.lattice.determinize.subsets import (
    ARCS,
    ELEMENTS,
    ENTRIES,
    HEAP,
    STATES,
    STRINGS,
    TASKS,
    WORK,
    Pools,
    find_subset,
    insert,
    normalize_subset,
    pop,
    push,
    subset_key,
)

Scratch = tuple[np.ndarray, np.ndarray, np.ndarray]
DONE = -1  # what `do_tasks` says if no table is full


def rows_of_task(graph: Closures) -> int:
    """Return the most rows of a table that one task takes."""
    return graph.num_ends + len(graph.out_label) + 4


@njit(cache=True, nogil=True)
def start(
    graph: Closures,
    pools: Pools,
    scratch: Scratch,
    final_costs: np.ndarray,
    cutoff: float,
) -> None:
    """Make the start state of the result and its tasks.

    It is not normalized, as no arc leads there to carry what would be taken out.

    Args:
        graph: the lattice between words.
        pools: empty tables, with capacity for a task.
        scratch: int64[S + 1, 3], zeros: the best path to each end state so far, that is
            the round it was found in, an element and a token; float64[S, 2], its costs;
            powers of the base of fingerprints.
        final_costs: float64[S, 2], graph and acoustic, scaled; inf if not final.
        cutoff: cost of a path that is still wanted.
    """
    first, prefix = pools.used[ELEMENTS], pools.used[HEAP]  # 1 and 0
    last = _close(graph, pools, scratch, (first - 1, first))
    key = subset_key(pools, scratch[2], (first, last), prefix, np.uint64(0))
    _add_state(pools, (first, last, prefix), key, 0.0)
    _expand(graph, pools, scratch[2], final_costs, cutoff)


@njit(cache=True, nogil=True)
def do_tasks(
    graph: Closures,
    pools: Pools,
    scratch: Scratch,
    final_costs: np.ndarray,
    limits: tuple[float, float, Number, Number, Number],
) -> Number:
    """Do tasks until none is left, a limit is reached, or a table is full.

    Args:
        graph: the lattice between words.
        pools: the tables.
        scratch: as for `start`.
        final_costs: likewise.
        limits: cutoff; delta; the most arcs of the result; the most work; the most rows
            of a task.

    Returns:
        DONE when the search has ended, else which rows (`ELEMENTS`, ...) have too few
        that are free for one more task.
    """
    cutoff, delta, max_arcs, max_work, needed = limits
    used = pools.used
    while used[HEAP] > 0 and used[ARCS] <= max_arcs and used[WORK] <= max_work:
        full = _full(pools, needed)
        if full != DONE:
            return full
        task = pools.heap[0]
        pop(pools)
        num_states = used[STATES]
        _do_task(graph, pools, scratch, task, delta)
        if used[STATES] > num_states:
            _expand(graph, pools, scratch[2], final_costs, cutoff)
    return DONE


@njit(cache=True, nogil=True)
def _full(pools: Pools, needed: Number) -> Number:
    """Return which rows may not suffice for one more task, DONE if all do.

    Args:
        pools: the tables.
        needed: the most elements, strings and tasks of a task; of all others it makes
            at most two.
    """
    sizes = (
        (ELEMENTS, len(pools.element), needed),
        (STRINGS, len(pools.string_link), needed),
        (TASKS, len(pools.task), needed),
        (STATES, len(pools.state), 2),
        (ARCS, len(pools.arc), 2),
        (ENTRIES, len(pools.entry), 2),
    )
    for rows, size, wanted in sizes:
        if pools.used[rows] + wanted > size:
            return rows
    return DONE


@njit(cache=True, nogil=True)
def _do_task(
    graph: Closures, pools: Pools, scratch: Scratch, task: Number, delta: float
) -> None:
    """Make an arc of a task, and the state it leads to if that is a new one."""
    state, label, first, last = pools.task[task]
    prefix = pools.state[state, 2]
    key, shared, graph_cost, acoustic_cost = normalize_subset(
        pools, graph, scratch[2], (first, last), prefix
    )
    entry = find_subset(
        (pools.entries_by_key, pools.entry_key, pools.entry),
        pools,
        (first, last),
        key,
        delta,
    )
    if entry < 0:
        cost = pools.state_cost[state] + graph_cost + acoustic_cost
        entry = _enter_subset(
            graph, pools, scratch, (first, last, shared), (key, cost, delta)
        )
    if entry < 0:
        return
    row = pools.used[ARCS]
    arc = pools.arc[row]
    arc[0], arc[1], arc[2] = state, pools.entry[entry, 2], label
    arc[3], arc[4], arc[5] = pools.element[first, 1], prefix, shared
    arc[6:9] = pools.entry[entry, 3:6]
    pools.arc_cost[row, 0] = graph_cost + pools.entry_cost[entry, 0]
    pools.arc_cost[row, 1] = acoustic_cost + pools.entry_cost[entry, 1]
    pools.used[ARCS] += 1


@njit(cache=True, nogil=True)
def _enter_subset(
    graph: Closures,
    pools: Pools,
    scratch: Scratch,
    subset: tuple[Number, Number, Number],
    about: tuple[Number, Number, float],
) -> Number:
    """Find the state that a subset of begin states leads to, and note it.

    Args:
        graph: the lattice between words.
        pools: the tables.
        scratch: as for `start`.
        subset: first and last element, symbols that they share.
        about: key of the subset, cost of the path there, delta.

    Returns:
        The new entry, or -1 if nothing within the beam follows.
    """
    first, last, shared = subset
    key, cost, delta = about
    closed = (pools.used[ELEMENTS], _close(graph, pools, scratch, (first, last)))
    if closed[0] == closed[1]:
        return -1
    closed_key, prefix, graph_cost, acoustic_cost = normalize_subset(
        pools, graph, scratch[2], closed, shared
    )
    string = pools.element[closed[0], 1]
    table = (pools.states_by_key, pools.state_key, pools.state)
    target = find_subset(table, pools, closed, closed_key, delta)
    if target < 0:
        target = pools.used[STATES]
        cost += graph_cost + acoustic_cost
        _add_state(pools, (closed[0], closed[1], prefix), closed_key, cost)
    else:
        pools.used[ELEMENTS] = closed[0]
    row = pools.used[ENTRIES]
    entry = pools.entry[row]
    entry[0], entry[1], entry[2] = first, last, target
    entry[3], entry[4], entry[5] = string, shared, prefix
    pools.entry_cost[row, 0], pools.entry_cost[row, 1] = graph_cost, acoustic_cost
    pools.entry_key[row] = key
    insert(pools.entries_by_key, key, row)
    pools.used[ENTRIES] += 1
    return row


@njit(cache=True, nogil=True)
def _close(
    graph: Closures, pools: Pools, scratch: Scratch, subset: tuple[Number, Number]
) -> Number:
    """Follow a subset of begin states to the end states.

    The new elements, in the order of their states, are added behind all others.

    Args:
        graph: the lattice between words.
        pools: the tables.
        scratch: as for `start`.
        subset: first and last element.

    Returns:
        One past the last new element.
    """
    paths, path_costs, powers = scratch
    paths[-1, 0] += 1  # rounds are counted behind the states
    this_round = paths[-1, 0]
    reached, count = np.empty(graph.num_ends, np.int64), 0
    for k in range(subset[0], subset[1]):
        begin = pools.element[k, 0]
        pools.used[WORK] += graph.close_begin[begin + 1] - graph.close_begin[begin]
        for path in range(graph.close_begin[begin], graph.close_begin[begin + 1]):
            end, token = graph.close_end[path], graph.close_token[path]
            one = pools.element_cost[k, 0] + graph.token_cost[token, 0]
            two = pools.element_cost[k, 1] + graph.token_cost[token, 1]
            if paths[end, 0] != this_round:
                paths[end, 0] = this_round
                reached[count] = end
                count += 1
            else:
                order = cost_order(one, two, path_costs[end, 0], path_costs[end, 1])
                if order == 0:
                    order = _tied(graph, pools, powers, (k, token), end, paths[end])
                if order >= 0:
                    continue
            paths[end, 1], paths[end, 2] = k, token
            path_costs[end, 0], path_costs[end, 1] = one, two
    reached = np.sort(reached[:count])
    row = pools.used[ELEMENTS]
    for end in reached:
        parts = (pools.element[paths[end, 1], 1], paths[end, 2], graph.frame[end])
        string = _extended(graph, pools, powers, parts, pools.used[STRINGS])
        pools.used[STRINGS] += string == pools.used[STRINGS]
        pools.element[row, 0], pools.element[row, 1] = end, string
        pools.element_cost[row] = path_costs[end]
        row += 1
    pools.used[ELEMENTS] = row
    return row


@njit(cache=True, nogil=True)
def _tied(
    graph: Closures,
    pools: Pools,
    powers: np.ndarray,
    path: tuple[Number, Number],
    end: Number,
    other: np.ndarray,
) -> Number:
    """Compare the strings of two paths to an end state, in free rows of strings.

    Args:
        graph: the lattice between words.
        pools: the tables.
        powers: of the base of fingerprints.
        path: element and token.
        end: the end state.
        other: round, element and token of the other path.

    Returns:
        Below 0 if the first path is the better one.
    """
    row, length = pools.used[STRINGS], graph.frame[end]
    parts = (pools.element[path[0], 1], path[1], length)
    one = _extended(graph, pools, powers, parts, row)
    parts = (pools.element[other[1], 1], other[2], length)
    two = _extended(graph, pools, powers, parts, row + 1)
    return _string_order(graph, pools, one, two)


@njit(cache=True, nogil=True)
def _string_order(
    graph: Closures, pools: Pools, string: Number, other: Number
) -> Number:
    """Return below 0 if the first string is the better one: the higher."""
    links = pools.string_link
    ends = (np.int64(links[string, 1]), np.int64(links[other, 1]))
    order, count = compare_strings(
        graph.token_link, links, (string, ends[0]), (other, ends[1])
    )
    pools.used[WORK] += count
    return -order


@njit(cache=True, nogil=True)
def _extended(
    graph: Closures,
    pools: Pools,
    powers: np.ndarray,
    parts: tuple[Number, Number, Number],
    row: Number,
) -> Number:
    """Put a token behind a string, in a row of the strings; return the new string.

    Args:
        graph: the tokens.
        pools: the strings.
        powers: of the base of fingerprints.
        parts: string, token, length of the whole; if nothing is added, the string is
            returned.
        row: the row that may be written.
    """
    string, token, length = parts
    links, prints = pools.string_link, pools.string_print
    added = length - links[string, 2]
    if added == 0:
        return string
    links[row, 0], links[row, 1], links[row, 2] = string, token, length
    prints[row] = concatenated(prints[string], graph.token_print[token], powers[added])
    return row


@njit(cache=True, nogil=True)
def _add_state(
    pools: Pools, subset: tuple[Number, Number, Number], key: Number, cost: float
) -> None:
    """Add a state of the result: its elements and their prefix, its key, its cost."""
    row = pools.used[STATES]
    state = pools.state[row]
    state[0], state[1], state[2] = subset
    pools.state_cost[row] = cost
    pools.state_key[row] = key
    insert(pools.states_by_key, key, row)
    pools.used[STATES] += 1


@njit(cache=True, nogil=True)
def _expand(
    graph: Closures,
    pools: Pools,
    powers: np.ndarray,
    final_costs: np.ndarray,
    cutoff: float,
) -> None:
    """Add the final cost of the newest state, and the tasks of its arcs."""
    state = pools.used[STATES] - 1
    first, last = pools.state[state, 0], pools.state[state, 1]
    _add_final(graph, pools, final_costs, state, cutoff)
    count = 0
    for k in range(first, last):
        end = pools.element[k, 0]
        count += graph.out_begin[end + 1] - graph.out_begin[end]
    pools.used[WORK] += count
    keys, origin = np.empty(count, np.int64), np.empty((count, 2), np.int64)
    num_begin, at = len(graph.backward), 0
    for k in range(first, last):
        end = pools.element[k, 0]
        for arc in range(graph.out_begin[end], graph.out_begin[end + 1]):
            keys[at] = graph.out_label[arc] * num_begin + graph.out_target[arc]
            origin[at, 0], origin[at, 1] = k, arc
            at += 1
    records = np.argsort(keys, kind="mergesort")  # a stable one
    keys = keys[records]
    at = 0
    while at < count:
        begin, label = at, keys[at] // num_begin
        while at < count and keys[at] // num_begin == label:
            at += 1
        _add_task(graph, pools, powers, origin[records[begin:at]], (state, cutoff))


@njit(cache=True, nogil=True)
def _add_final(
    graph: Closures,
    pools: Pools,
    final_costs: np.ndarray,
    state: Number,
    cutoff: float,
) -> None:
    """Make the best path of a state to the end its final cost and string, if any."""
    best, graph_cost, acoustic_cost = np.int64(-1), np.inf, np.inf
    for k in range(pools.state[state, 0], pools.state[state, 1]):
        end, string = pools.element[k]
        one = pools.element_cost[k, 0] + final_costs[end, 0]
        two = pools.element_cost[k, 1] + final_costs[end, 1]
        order = cost_order(one, two, graph_cost, acoustic_cost)
        if order == 0 and best >= 0:
            order = _string_order(graph, pools, string, best)
        if order < 0:
            best, graph_cost, acoustic_cost = string, one, two
    if best < 0 or graph_cost + acoustic_cost + pools.state_cost[state] > cutoff:
        return
    row = pools.used[ARCS]
    arc = pools.arc[row]
    arc[0], arc[1], arc[2] = state, -1, 0
    arc[3], arc[4] = best, pools.state[state, 2]
    arc[5] = pools.string_link[best, 2]
    arc[6:9] = 0
    pools.arc_cost[row, 0], pools.arc_cost[row, 1] = graph_cost, acoustic_cost
    pools.used[ARCS] += 1


@njit(cache=True, nogil=True)
def _add_task(
    graph: Closures,
    pools: Pools,
    powers: np.ndarray,
    origin: np.ndarray,
    about: tuple[Number, float],
) -> None:
    """Make a task of the arcs with one label that leave a state, if it is worth it.

    Args:
        graph: the lattice between words.
        pools: the tables; the elements of the task are added.
        powers: of the base of fingerprints.
        origin: int64[., 2], element and labelled arc, by the begin state they reach.
        about: the state, and the cost of a path that is still wanted.
    """
    state, cutoff = about
    first, num_strings, priority = pools.used[ELEMENTS], pools.used[STRINGS], np.inf
    last = first
    for k, arc in origin:
        begin, before = graph.out_target[arc], pools.element[k, 1]
        one = pools.element_cost[k, 0] + graph.out_cost[arc, 0]
        two = pools.element_cost[k, 1] + graph.out_cost[arc, 1]
        priority = min(priority, one + two + graph.backward[begin])
        token, row = graph.out_token[arc], pools.used[STRINGS]
        parts = (before, token, pools.string_link[before, 2] + np.int64(token >= 0))
        string = _extended(graph, pools, powers, parts, row)
        if last > first and pools.element[last - 1, 0] == begin:
            other = pools.element_cost[last - 1]
            order = cost_order(one, two, other[0], other[1])
            if order == 0:
                order = _string_order(graph, pools, string, pools.element[last - 1, 1])
            if order >= 0:
                continue
            last -= 1
        pools.used[STRINGS] += string == row
        pools.element[last, 0], pools.element[last, 1] = begin, string
        pools.element_cost[last, 0], pools.element_cost[last, 1] = one, two
        last += 1
    priority += pools.state_cost[state]
    if priority > cutoff:
        pools.used[STRINGS] = num_strings
        return
    pools.used[ELEMENTS] = last
    task = pools.used[TASKS]
    row = pools.task[task]
    row[0], row[1] = state, graph.out_label[origin[0, 1]]
    row[2], row[3] = first, last
    pools.task_cost[task] = priority
    pools.used[TASKS] += 1
    push(pools, task)
