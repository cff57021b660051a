"""A class of words that a language model lacks, made of words that it knows.

A new word is expected where words like it are. The class has some words of the model
for *members*, and as a word of the model it behaves like the mean of them:

    p(class | history) = mean over members m of p(m | history)
    p(word | class) = mean over members m of p(word | m)

So p(class | history) is the probability of one word of the class. Both are given where
the model lists a member, with the mean back-off weight; elsewhere one backs off.

Source: Brown et al. 1992, "Class-based n-gram models of natural language", for the
decomposition.
"""

from __future__ import annotations

import numpy as np

from latflow.jit import njit
from latflow.lang.arpa import NONE
from latflow.lang.lm_arrays import LmArrays, find_arc, walk


def rare_words(lm: LmArrays, first: int, last: int, share: float) -> np.ndarray:
    """Return the labels of the words that are rarest without a history.

    Args:
        lm: a back-off model.
        first, last: labels of words, the last one excluded.
        share: of the words, by which many are taken; at least one is.

    Returns:
        int32[members], ascending; empty where the model has no word.
    """
    root = empty_history(lm)
    arcs = slice(int(lm.arc_begin[root]), int(lm.arc_begin[root + 1]))
    label, cost = lm.label[arcs], lm.cost[arcs]
    is_word = (label >= first) & (label < last) & np.isfinite(cost)
    label, cost = label[is_word], cost[is_word]
    number = max(1, round(share * len(label)))
    return np.sort(label[np.argsort(-cost, kind="stable")[:number]])


def empty_history(lm: LmArrays) -> int:
    """Return the state that backs off no further; of several, that with most arcs."""
    counts = np.where(lm.backoff_state < 0, np.diff(lm.arc_begin), -1)
    return int(np.argmax(counts))


def with_class(lm: LmArrays, members: np.ndarray, label: int) -> LmArrays:
    """Return a model with a class, and one more state, the history of the class.

    Args:
        lm: a back-off model.
        members: int32[M], labels of words that its empty history lists.
        label: of the class, above all others.
    """
    num_states = len(lm.backoff_state)
    depth = _depths(lm)
    is_member = np.zeros(label + 1, np.bool_)
    is_member[members] = True
    cost = _class_costs(lm, is_member, np.argsort(depth, kind="stable"))
    has_class = np.flatnonzero(np.isfinite(cost))
    begin = lm.arc_begin + np.searchsorted(has_class, np.arange(num_states + 1))
    at = lm.arc_begin[has_class + 1]
    with_arcs = lm._replace(
        arc_begin=begin.astype(np.int64),
        label=np.insert(lm.label, at, label).astype(np.int32),
        cost=np.insert(lm.cost, at, cost[has_class]).astype(np.float32),
        next_state=np.insert(lm.next_state, at, num_states).astype(np.int32),
    )
    root = empty_history(lm)
    words, word_costs, targets, back_off = _behind(with_arcs, members, root)
    return LmArrays(
        np.append(begin, begin[-1] + len(words)).astype(np.int64),
        np.append(with_arcs.label, words).astype(np.int32),
        np.append(with_arcs.cost, word_costs).astype(np.float32),
        np.append(with_arcs.next_state, targets).astype(np.int32),
        np.append(lm.backoff_state, root if back_off < np.inf else NONE).astype(
            np.int32
        ),
        np.append(lm.backoff_cost, back_off if back_off < np.inf else 0).astype("f4"),
    )


def _depths(lm: LmArrays) -> np.ndarray:
    """Return how often each state can back off."""
    depth = np.zeros(len(lm.backoff_state), np.int32)
    state = lm.backoff_state
    while (backs_off := state >= 0).any():
        depth += backs_off
        state = np.where(backs_off, lm.backoff_state[state], -1)
    return depth


@njit(cache=True, nogil=True)
def _class_costs(lm: LmArrays, is_member: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the cost of the class in each state; inf where no member is listed.

    Args:
        lm: the model.
        is_member: bool[labels].
        order: of the states: those first that others back off to.
    """
    num_members = is_member.sum()
    cost = np.full(len(order), np.inf)
    mean = np.zeros(len(order))  # probability of a member, backing off included
    for state in order:
        shorter, listed, others = lm.backoff_state[state], 0.0, 0.0
        is_listed = False
        for a in range(lm.arc_begin[state], lm.arc_begin[state + 1]):
            if is_member[lm.label[a]]:
                is_listed = True
                listed += np.exp(-np.float64(lm.cost[a]))
                if shorter >= 0:
                    others += np.exp(-walk(lm, shorter, lm.label[a])[0])
        mean[state] = listed / num_members
        if shorter >= 0:
            rest = max(0.0, mean[shorter] - others / num_members)
            mean[state] += np.exp(-np.float64(lm.backoff_cost[state])) * rest
        if is_listed and mean[state] > 0.0:
            cost[state] = -np.log(mean[state])
    return cost


def _behind(
    lm: LmArrays, members: np.ndarray, root: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return labels, costs and targets of what follows the class, and its back-off.

    Words that a member lists behind itself are listed behind the class.
    """
    states = lm.next_state[[find_arc(lm, root, label) for label in members.tolist()]]
    states, counts = np.unique(states, return_counts=True)
    share = counts / counts.sum()
    weight = share * np.exp([-_back_off_cost(lm, s, root) for s in states.tolist()])
    listed: dict[int, float] = {}  # label -> probability of it where members list it
    unlisted: dict[int, float] = {}  # likewise, weight of backing off of those that do
    target: dict[int, int] = {}
    for state, part, left in zip(states, share, weight, strict=True):
        if state == root:
            continue
        for a in range(int(lm.arc_begin[state]), int(lm.arc_begin[state + 1])):
            label = int(lm.label[a])
            listed[label] = listed.get(label, 0.0) + part * np.exp(-float(lm.cost[a]))
            unlisted[label] = unlisted.get(label, 0.0) + left
            shorter = find_arc(lm, root, label)
            target[label] = int(lm.next_state[shorter if shorter >= 0 else a])
    total = float(weight.sum())
    labels = np.array(sorted(listed), np.int32)
    costs = np.empty(len(labels))
    for n, label in enumerate(labels.tolist()):
        alone = np.exp(-walk(lm, root, label)[0])
        costs[n] = -np.log(listed[label] + (total - unlisted[label]) * alone)
    targets = np.array([target[label] for label in labels.tolist()], np.int32)
    return labels, costs, targets, -float(np.log(total)) if total > 0.0 else np.inf


def _back_off_cost(lm: LmArrays, state: int, root: int) -> float:
    """Return the cost of backing off from a state to the root; inf if it can't."""
    cost = 0.0
    while state != root:
        if lm.backoff_state[state] < 0:
            return np.inf
        cost += float(lm.backoff_cost[state])
        state = int(lm.backoff_state[state])
    return cost
