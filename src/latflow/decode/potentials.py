"""What the arcs of a composed graph are pushed by: costs of all that may come next.

See `latflow.decode.composition`.
"""

from __future__ import annotations

import numpy as np

from latflow.decode.parts import ADDED_ALONE, AddedWords, Parts, Transducer
from latflow.jit import njit
from latflow.lang.lm_arrays import LmArrays, find_arc, first_from

_LEAST_GAIN, _MOST_GAIN = 1e-4, 50.0  # of a word that continues with a phrase


@njit(cache=True, nogil=True, allocates=False)
def half_of(parts: Parts, part: int) -> tuple[Transducer, int]:
    """Return the transducer that a state is of, and its number there."""
    num_states = len(parts.hcl.final)
    if part < num_states:
        return parts.hcl, part
    return parts.added.transducer, part - num_states


@njit(cache=True, nogil=True, allocates=False)
def leads_nowhere(parts: Parts, part: int, state: int) -> bool:
    """Tell at a look that nothing can come next, of most pairs that are so.

    Args:
        parts: what is composed.
        part: state of HCL, or of what is added.
        state: of G.
    """
    if part >= len(parts.span) or parts.span[part, 0] < 0:
        return False
    lm = parts.lm
    last = lm.arc_begin[state + 1]
    arc = first_from(lm.label, lm.arc_begin[state], last, parts.span[part, 0])
    return arc == last or lm.label[arc] > parts.span[part, 1]


@njit(cache=True, nogil=True, allocates=False)
def potential_of(parts: Parts, part: int, history: int) -> np.floating | float:
    """Return the cost of all that can come next together; inf if nothing can.

    Args:
        parts: what is composed.
        part: state of HCL, or of what is added.
        history: state of G x states of the phrases + state of the phrases.
    """
    num_nodes = len(parts.phrases.refund)
    state, node = history // num_nodes, history % num_nodes
    half, own = half_of(parts, part)
    labels = half.set_of[own]
    if labels <= ADDED_ALONE:
        if parts.added.is_class[0]:
            return np.float32(parts.added.cost[ADDED_ALONE - labels])
        total = _added_words(parts.lm, parts.added, state)
        return np.float32(-np.log(total)) if total > 0.0 else np.float32(np.inf)
    least, total = _next_words(parts, labels, state)
    if len(parts.phrases.label_of) > 0 and least < np.inf:
        refund = np.float64(parts.phrases.refund[node])
        total += _favoured(parts, labels, state, node, refund)
        least += refund
        total *= np.exp(-refund)
    # Where the sum is lost next to larger ones, or too small for a number, another
    # potential does as well.
    return np.float32(-np.log(total)) if total > 0.0 else np.float32(least)


@njit(cache=True, nogil=True, allocates=False)
def _next_words(parts: Parts, labels: int, state: int) -> tuple[float, float]:
    """Return what may come next: some cost (inf for nothing), and the sum.

    Args:
        parts: what is composed.
        labels: the set that may come next by HCL.
        state: of G.
    """
    lm = parts.lm
    least, total = np.inf, 0.0
    if parts.can_add[labels] and len(parts.added.entry) > 0:
        shorter, cost = np.int64(state), 0.0
        while shorter >= 0:
            found = _added_words(lm, parts.added, shorter)
            if found > 0.0:
                least = cost - np.log(found)
                total += np.exp(-least)
            cost += lm.backoff_cost[shorter]
            shorter = np.int64(lm.backoff_state[shorter])
    back = lm.backoff_state[state]
    if parts.can_back_off[labels] and back >= 0 and parts.any_word[back] > 0.0:
        least = np.float64(lm.backoff_cost[state])
        total += np.exp(-least) * parts.any_word[back]
    some, listed = _listed_words(parts, labels, state)
    return min(some, least), total + listed


@njit(cache=True, nogil=True, allocates=False)
def _listed_words(parts: Parts, labels: int, state: int) -> tuple[float, float]:
    """Return what a state of G lists of the words that may come next, likewise.

    Its words or the ranges of what may come, whichever are fewer, are gone through, and
    looked up in the others.
    """
    lm, least, total = parts.lm, np.inf, 0.0
    first, last = lm.arc_begin[state], lm.arc_begin[state + 1]
    begin, end = parts.set_begin[labels], parts.set_begin[labels + 1]
    if last - first < end - begin:
        range_ends = parts.ranges[:, 1]
        for arc in range(first, last):
            begin = first_from(range_ends, begin, end, lm.label[arc])
            if begin < end and parts.ranges[begin, 0] <= lm.label[arc]:
                least = np.float64(lm.cost[arc])
                total += np.exp(-least)
        return least, total
    at = first
    for r in range(begin, end):
        if at == last:
            break
        arc = first_from(lm.label, at, last, parts.ranges[r, 0])
        at = first_from(lm.label, arc, last, parts.ranges[r, 1] + 1)
        if at > arc:
            least = np.float64(lm.cost[arc])
            before = parts.sums[arc - 1] if arc > first else 0.0
            total += parts.sums[at - 1] - before
    return least, total


@njit(cache=True, nogil=True, allocates=False)
def _added_words(lm: LmArrays, added: AddedWords, state: int) -> float:
    """Return the probability that a state of G gives to added words."""
    total = 0.0
    for k in range(len(added.label)):
        arc = find_arc(lm, state, added.label[k])
        if arc >= 0:
            own = np.float64(added.cost[k]) if added.is_class[0] else 0.0
            total += np.exp(-np.float64(lm.cost[arc]) - own)
    return total


@njit(cache=True, nogil=True, allocates=False)
def _favoured(parts: Parts, labels: int, state: int, node: int, refund: float) -> float:
    """Return what phrases add to the sum of what may come next.

    Args:
        parts: what is composed.
        labels: the set that may come next by HCL.
        state: of G.
        node: state of the phrases.
        refund: of that state; the sum has it for all words.
    """
    phrases, total, cost, at = parts.phrases, 0.0, 0.0, np.int64(node)
    while at >= 0:
        first, last = phrases.lm.arc_begin[at], phrases.lm.arc_begin[at + 1]
        for r in range(parts.set_begin[labels], parts.set_begin[labels + 1]):
            size = len(phrases.label)
            low = first_from(phrases.label, 0, size, parts.ranges[r, 0])
            high = first_from(phrases.label, low, size, parts.ranges[r, 1] + 1)
            if low == high:
                continue
            for a in range(first_from(phrases.lm.label, first, last, low), last):
                if phrases.lm.label[a] >= high:
                    break
                gain = refund - cost - phrases.lm.cost[a]
                if gain > _LEAST_GAIN:  # else it begins no phrase
                    arc = find_arc(parts.lm, state, phrases.label[phrases.lm.label[a]])
                    if arc >= 0:
                        probability = np.exp(-np.float64(parts.lm.cost[arc]))
                        total += probability * (np.exp(min(gain, _MOST_GAIN)) - 1)
        cost += phrases.lm.backoff_cost[at]
        at = np.int64(phrases.lm.backoff_state[at])
    return total
