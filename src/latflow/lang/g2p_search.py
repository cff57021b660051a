"""Search for the pronunciations of a word under an n-gram model of graphones.

Hypotheses go through the letters from left to right. One is a phone sequence and a
state of the model; those that have come to the same letter with the same phones and
state, by other graphones, are added up, so that a pronunciation gets the sum over all
ways to cut it. Behind each letter only the best are kept. With enough of them the
search is exact.

Phone sequences are nodes of a tree: two are equal if they are the same node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.jit import njit
from latflow.lang.lm_arrays import LmArrays, walk

_ROOT = 0


class Candidates(NamedTuple):
    """Graphones that fit the letters of a word of L letters.

    Attributes:
        begin: int64[2 L + 1]; those of one letter from letter i on are `label` from
            begin[2 i] to begin[2 i + 1], those of two letters from there to
            begin[2 i + 2].
        label: int32[C], their words in the n-gram model.
        phones: int32[C, 2], phones of each, numbered from 0; -1 for none.
    """

    begin: np.ndarray
    label: np.ndarray
    phones: np.ndarray


class _Hypotheses(NamedTuple):
    """Hypotheses as columns, all int64[N] but the first."""

    cost: np.ndarray  # float64[N], -ln of the probability
    state: np.ndarray  # of the model
    node: np.ndarray  # of the tree of phone sequences


@njit(cache=True, nogil=True)
def search(
    lm: LmArrays,
    start: int,
    end: int,
    candidates: Candidates,
    max_hypotheses: int,
    beam: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the pronunciations of a word.

    Args:
        lm: n-gram model of graphones.
        start: its state at the start of a word.
        end: its label of the end of a word.
        candidates: graphones that fit the letters.
        max_hypotheses: how many are kept behind each letter.
        beam: how much more a kept one may cost than the best there.

    Returns:
        (cost float64[N], begin int64[N + 1], phones int32[M]): pronunciations in the
        order of their costs, the phones of one behind those of the other. Cost is -ln
        of the joint probability of letters and phones. N is 0 if there is no way.
    """
    num_letters = len(candidates.begin) // 2
    tree = np.full((64, 4), -1, dtype=np.int64)  # parent, phone, first child, sibling
    size = 1
    num_states = len(lm.backoff_state)
    here = _Hypotheses(
        np.zeros(1), np.full(1, start, dtype=np.int64), np.zeros(1, dtype=np.int64)
    )
    after = _none()
    after_next = _none()
    for i in range(num_letters):
        for length in range(1, 3):
            first = candidates.begin[2 * i + length - 1]
            last = candidates.begin[2 * i + length]
            if first == last or len(here.cost) == 0:
                continue
            found, tree, size = _extend(
                lm, here, candidates, first, last, beam, tree, size
            )
            if length == 1:
                after = _joined(after, found)
            else:
                after_next = _joined(after_next, found)
        here = _best(_merged(after, num_states), max_hypotheses, beam)
        after, after_next = after_next, _none()
    return _finish(lm, end, here, tree)


@njit(cache=True, nogil=True)
def _none() -> _Hypotheses:
    """Return no hypotheses."""
    empty = np.zeros(0, dtype=np.int64)
    return _Hypotheses(np.zeros(0), empty, empty)


@njit(cache=True, nogil=True)
def _joined(a: _Hypotheses, b: _Hypotheses) -> _Hypotheses:
    """Return two lists of hypotheses as one."""
    return _Hypotheses(
        np.concatenate((a.cost, b.cost)),
        np.concatenate((a.state, b.state)),
        np.concatenate((a.node, b.node)),
    )


@njit(cache=True, nogil=True)
def _extend(
    lm: LmArrays, here: _Hypotheses, candidates: Candidates, first: int, last: int,
    beam: float, tree: np.ndarray, size: int,
) -> tuple[_Hypotheses, np.ndarray, int]:  # fmt: skip
    """Append graphones first to last to all hypotheses; `here` is sorted by cost.

    Returns:
        (hypotheses within the beam of the best one that was there before, tree, its
        number of nodes).
    """
    capacity = len(here.cost) * (last - first)
    cost = np.zeros(capacity)
    state = np.zeros(capacity, dtype=np.int64)
    node = np.zeros(capacity, dtype=np.int64)
    number = 0
    best = np.inf
    for h in range(len(here.cost)):
        if here.cost[h] > best + beam:
            break
        for c in range(first, last):
            more, to = walk(lm, here.state[h], candidates.label[c])
            total = here.cost[h] + more
            if to < 0 or total > best + beam:
                continue
            best = min(best, total)
            at = here.node[h]
            for phone in candidates.phones[c]:
                if phone >= 0:
                    at, tree, size = _child(tree, size, at, phone)
            cost[number] = total
            state[number] = to
            node[number] = at
            number += 1
    found = _Hypotheses(cost[:number], state[:number], node[:number])
    return found, tree, size


@njit(cache=True, nogil=True)
def _child(
    tree: np.ndarray, size: int, node: int, phone: int
) -> tuple[int, np.ndarray, int]:
    """Return the node of a sequence with one more phone; made if it is not there."""
    child = tree[node, 2]
    while child >= 0:
        if tree[child, 1] == phone:
            return child, tree, size
        child = tree[child, 3]
    if size == len(tree):
        larger = np.full((2 * size, 4), -1, dtype=np.int64)
        larger[:size] = tree
        tree = larger
    tree[size, 0] = node
    tree[size, 1] = phone
    tree[size, 3] = tree[node, 2]
    tree[node, 2] = size
    return size, tree, size + 1


@njit(cache=True, nogil=True)
def _merged(given: _Hypotheses, num_states: int) -> _Hypotheses:
    """Add up hypotheses with the same phones and state."""
    order = np.argsort(given.node * num_states + given.state, kind="mergesort")
    cost = given.cost[order]
    state = given.state[order]
    node = given.node[order]
    number = 0
    for n in range(len(order)):
        last = number - 1
        if number and node[n] == node[last] and state[n] == state[last]:
            low, high = min(cost[n], cost[last]), max(cost[n], cost[last])
            cost[last] = low - np.log1p(np.exp(low - high))
            continue
        cost[number], state[number], node[number] = cost[n], state[n], node[n]
        number += 1
    return _Hypotheses(cost[:number], state[:number], node[:number])


@njit(cache=True, nogil=True)
def _best(given: _Hypotheses, number: int, beam: float) -> _Hypotheses:
    """Return the best hypotheses, sorted by cost."""
    if len(given.cost) == 0:
        return given
    order = np.argsort(given.cost, kind="mergesort")[:number]
    limit = given.cost[order[0]] + beam
    order = order[given.cost[order] <= limit]
    return _Hypotheses(given.cost[order], given.state[order], given.node[order])


@njit(cache=True, nogil=True)
def _finish(
    lm: LmArrays, end: int, here: _Hypotheses, tree: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """End the word in all hypotheses and add up those with the same phones."""
    for h in range(len(here.cost)):
        here.cost[h] += walk(lm, here.state[h], end)[0]
        here.state[h] = 0
    last = _merged(here, 1)
    spoken = _best(
        _Hypotheses(
            last.cost[last.node != _ROOT],
            last.state[last.node != _ROOT],
            last.node[last.node != _ROOT],
        ),
        len(last.cost),
        np.inf,
    )
    begin = np.zeros(len(spoken.cost) + 1, dtype=np.int64)
    for n in range(len(spoken.cost)):
        begin[n + 1] = begin[n]
        at = spoken.node[n]
        while at != _ROOT:
            begin[n + 1] += 1
            at = tree[at, 0]
    phones = np.zeros(begin[-1], dtype=np.int32)
    for n in range(len(spoken.cost)):
        place = begin[n + 1]
        at = spoken.node[n]
        while at != _ROOT:
            place -= 1
            phones[place] = tree[at, 1]
            at = tree[at, 0]
    return spoken.cost, begin, phones
