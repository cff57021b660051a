"""OpenFst's `ngram` files: a back-off language model as a tree of contexts, in bits.

A state is a context, a node of a tree: the children of a node have one word more, the
word before. The tree's root, state 0, is the empty context. A file has, behind the
counts of states, arcs with words (futures) and final states:

* bits of the tree, level by level: `10`, then a 1 for each child of a node and a 0;
* bits of the futures: `0`, then a 1 for each future of a state and a 0;
* a bit for each state, 1 if it is final;
* the word of each node, the words of the futures; costs of back-off, of the final
  states, of the futures.

The graph has back-off arcs with epsilon on both sides, the first of their states, and
arcs with one word on both sides.

Source: OpenFst `extensions/ngram/ngram-fst.h`, `bitmap-index.h`; Sorensen, Allauzen
2011, "Unary data structures for language models".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from latflow.fst.openfst import ARC, STATE, Header, Name, refuse, take
from latflow.jit import njit

_VERSION = 4
_START = 1  # the state behind the beginning of a sentence, in all such files


class _Body(NamedTuple):
    """The arrays of a body: bits as words of 64, words, costs."""

    tree: np.ndarray
    futures: np.ndarray
    finals: np.ndarray
    words: np.ndarray
    future_words: np.ndarray
    backoff: np.ndarray
    final_costs: np.ndarray
    costs: np.ndarray


def read_ngram(
    buffer: memoryview, header: Header, *, name: Name = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Expand an `ngram` body into two arrays; same result as `read_const`.

    Raises:
        UserError: it is truncated or garbled.
    """
    if header.version != _VERSION:
        refuse(f"an FST of type ngram, version {header.version}, not {_VERSION}", name)
    layout = "<QQQ"
    num_states, num_futures, num_final = take(buffer, header.body, layout, name)
    if (num_states, header.start) != (header.num_states, _START):
        refuse("the header of the FST is garbled", name)
    at = header.body + struct.calcsize(layout)
    arrays = []
    for dtype, size in (
        ("<u8", _num_words(2 * num_states + 1)),
        ("<u8", _num_words(num_futures + num_states + 1)),
        ("<u8", _num_words(num_states)),
        ("<i4", num_states + 1),
        ("<i4", num_futures),
        ("<f4", num_states + 1),
        ("<f4", num_final),
        ("<f4", num_futures),
    ):
        end = at + np.dtype(dtype).itemsize * size
        if end > len(buffer):
            refuse("the FST is truncated", name)
        arrays.append(np.frombuffer(buffer, dtype, size, at).copy())
        at = end
    body = _Body(*arrays)
    states = np.empty(num_states, STATE)
    arcs = np.empty(num_futures + num_states - 1, ARC)
    links = _tree(body.tree, num_states)
    if links[0, 0] < 0 or not _fill(body, links, states, arcs):
        refuse("the n-gram model in the FST is garbled", name)
    return states, arcs, at + 4  # one cost more than there are futures


def _num_words(num_bits: int) -> int:
    """Return how many words of 64 bits hold a bitmap."""
    return -(-num_bits // 64)


@njit(cache=True, nogil=True)
def _is_set(bits: np.ndarray, at: int) -> bool:
    return bool((bits[at >> 6] >> np.uint64(at & 63)) & np.uint64(1))


@njit(cache=True, nogil=True)
def _tree(bits: np.ndarray, num_states: int) -> np.ndarray:
    """Return parent and first child of the states, int32[S + 1, 2]; -1: garbled.

    The last row has S as its first child.
    """
    links = np.zeros((num_states + 1, 2), np.int32)
    links[0, 0] = -1
    child, at = 1, 2
    for state in range(num_states):
        links[state, 1] = child
        while at < 2 * num_states + 1 and _is_set(bits, at):
            if child == num_states:
                return links
            links[child, 0] = state
            child += 1
            at += 1
        at += 1
    links[num_states, 1] = child
    if child == num_states and at == 2 * num_states + 1:
        links[0, 0] = 0
    return links


@njit(cache=True, nogil=True)
def _child(links: np.ndarray, words: np.ndarray, state: int, word: int) -> int:
    """Return the child of a state that a word leads to, or -1."""
    low, high = links[state, 1], links[state + 1, 1]
    while low < high:
        middle = (low + high) // 2
        if words[middle] < word:
            low = middle + 1
        else:
            high = middle
    found = low < links[state + 1, 1] and words[low] == word
    return low if found else -1


@njit(cache=True, nogil=True)
def _target(
    links: np.ndarray, words: np.ndarray, context: np.ndarray, depth: int, word: int
) -> int:
    """Return the longest context there is of a word and those before it.

    Args:
        context: the words before, the last first; `depth` of them.
    """
    state = _child(links, words, 0, word)
    if state < 0:
        return 0
    for before in range(depth):
        longer = _child(links, words, state, context[before])
        if longer < 0:
            break
        state = longer
    return state


@njit(cache=True, nogil=True)
def _fill(body: _Body, links: np.ndarray, states: np.ndarray, arcs: np.ndarray) -> bool:
    """Fill states and arcs; return whether the counts are those of the bits."""
    num_states, num_futures = len(states), len(body.future_words)
    context = np.empty(num_states, np.int32)
    future, final, arc, at = 0, 0, 0, 1
    for state in range(num_states):
        depth, node = 0, state
        while node:
            context[depth] = body.words[node]
            node, depth = links[node, 0], depth + 1
        context[:depth] = context[:depth][::-1].copy()
        is_final = _is_set(body.finals, state)
        if is_final and final == len(body.final_costs):
            return False
        states[state]["final"] = body.final_costs[final] if is_final else np.inf
        final += is_final
        states[state]["first_arc"] = arc
        has_backoff = state > 0
        states[state]["num_input_epsilons"] = has_backoff
        states[state]["num_output_epsilons"] = has_backoff
        if has_backoff:
            arcs[arc]["ilabel"] = arcs[arc]["olabel"] = 0
            arcs[arc]["weight"] = body.backoff[state]
            arcs[arc]["next_state"] = links[state, 0]
            arc += 1
        while at < num_futures + num_states + 1 and _is_set(body.futures, at):
            if future == num_futures:
                return False
            word = body.future_words[future]
            arcs[arc]["ilabel"] = arcs[arc]["olabel"] = word
            arcs[arc]["weight"] = body.costs[future]
            arcs[arc]["next_state"] = _target(links, body.words, context, depth, word)
            future, arc, at = future + 1, arc + 1, at + 1
        states[state]["num_arcs"] = arc - states[state]["first_arc"]
        at += 1
    return future == num_futures and final == len(body.final_costs)
