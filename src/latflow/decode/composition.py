"""HCL o G, composed state by state while a search asks for it.

HCLG of a large language model takes gigabytes, and a word that it lacks cannot be
added. A search can do without it: HCL (the lexicon in context, as HMMs) and G (the
language model) stay apart, and a *pair* of their states gets its arcs when a token
first comes there. Pairs, numbered as they are met, and their arcs are kept for the
searches to come, in all threads.

HCL gives a word where it is the only one left, far from where it begins. So that the
search doesn't learn the word's cost too late, arcs are *pushed*: the potential of a
pair is the cost that G has for what may follow,

    potential(s, g) = -ln of the sum over labels that can come next from s
                      of exp(-cost(label | g))

and an arc costs w + cost of its label + potential(target) - potential(source). Along a
path these add up to the costs of HCLG. Pairs without a label in common lead nowhere and
are left out. Labels are words, in an order in which those that come next from a state
are few *ranges*; the end of an utterance (a final state) or of one of its sentences,
behind which G begins again; and backing off, which G may do where HCL says so, at the
boundaries of words as in HCLG.

With the least of these costs instead of their sum, a search with few tokens keeps worse
ones: Vosk's Korean model then wants 200,000 of them for what it finds with 15,000.

Words may be *added* (`latflow.decode.added_words`): HCL has arcs where one may begin,
and what follows them are arcs of another transducer, whose states are numbered behind
those of HCL. G has the words themselves, or classes of them: then it is left for the
state behind the class where a word begins, and the word has its share of the cost.

Phrases may be *favoured* (`latflow.lang.phrases`): the history is then a state of G and
one of their model, which discounts the words that continue with a phrase, and takes
back what it gave where a phrase breaks off.

Source: Allauzen, Riley & Schalkwyk 2009, "A generalized composition algorithm for
weighted finite-state transducers" (label reachability, weight pushing); Mohri & Riley
2001, "A weight pushing algorithm for large vocabulary speech recognition" (sums); Kaldi
`utils/mkgraph_lookahead.sh`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from latflow.decode.parts import (
    ADDED,
    ARC,
    BACK_OFF,
    HAS_EPSILON,
    NOTHING,
    STATE,
    STATE_BITS,
    Parts,
    Phrases,
    Records,
    Transducer,
    no_parts,
)
from latflow.decode.potentials import half_of, leads_nowhere, potential_of
from latflow.jit import njit
from latflow.lang.lm_arrays import find_arc, walk

# Entries of `Composition.counts`.
PAIRS, ARCS = range(2)
_DEAD = -1  # instead of a pair's number: it leads nowhere
_MIXER = np.uint64(0x9E37_79B9_7F4A_7C15)


class Composition(NamedTuple):
    """A composed graph as far as it is made, for kernels.

    A pair has two records in `states`: the second one only ends its arcs, which need
    not lie before those of the next pair. A graph that isn't composed has arrays of no
    length.

    Attributes:
        parts: what it is composed of.
        slots: int32[a power of two], the table of pairs: number + 1, 0 where empty.
        keys: int64[most pairs], of each pair: state of HCL x histories + history; a
            history is a state of G x states of the phrases + state of the phrases.
        potential: float32[most pairs].
        is_made: int32[most pairs], 1 once its arcs are there.
        lock: int32[1], 1 while a thread adds arcs.
        counts: int64[2]: PAIRS, ARCS so far.
        states: `STATE`[2 x most pairs + 1].
        arcs: `ARC`[most arcs].
        origin: uint32[most arcs], the number of each arc itself.
        transition_id, word: int32[most arcs].
        final: float32[2 x most pairs].
    """

    parts: Parts
    slots: np.ndarray
    keys: np.ndarray
    potential: np.ndarray
    is_made: np.ndarray
    lock: np.ndarray
    counts: np.ndarray
    states: Records
    arcs: Records
    origin: np.ndarray
    transition_id: np.ndarray
    word: np.ndarray
    final: np.ndarray


def make_composition(parts: Parts, most_pairs: int, most_arcs: int) -> Composition:
    """Return the composition of parts, with space and without a pair.

    Memory is taken as it is filled.
    """
    return Composition(
        parts=parts,
        slots=np.zeros(1 << max(0, 2 * most_pairs - 1).bit_length(), np.int32),
        keys=np.zeros(most_pairs, np.int64),
        potential=np.zeros(most_pairs, np.float32),
        is_made=np.zeros(most_pairs, np.int32),
        lock=np.zeros(1, np.int32),
        counts=np.zeros(2, np.int64),
        states=np.zeros(2 * most_pairs + 1, STATE),
        arcs=np.zeros(most_arcs, ARC),
        origin=np.zeros(most_arcs, np.uint32),
        transition_id=np.zeros(most_arcs, np.int32),
        word=np.zeros(most_arcs, np.int32),
        final=np.zeros(2 * most_pairs, np.float32),
    )


# -- threads -----------------------------------------------------------------------


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return a pointer to array[index]."""
    array_type, index_type = signature.args[:2]
    array = context.make_array(array_type)(context, builder, arguments[0])
    at = context.cast(builder, arguments[1], index_type, types.intp)
    return cgutils.get_item_pointer(
        context, builder, array_type, array, [at], wraparound=False
    )


def _exchange(_context: Any, array: Any, index: Any, value: Any) -> tuple[Any, Any]:
    """Set array[index], int32, and return what was there, at once for all threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments)
        new = context.cast(builder, arguments[2], signature.args[2], types.int32)
        return builder.atomic_rmw("xchg", address, new, "acq_rel")

    return types.int32(array, index, value), generate


def _load(_context: Any, array: Any, index: Any) -> tuple[Any, Any]:
    """Return array[index], int32; what was written before it is seen as well."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments)
        return builder.load_atomic(address, "acquire", 4, typ=ir.IntType(32))

    return types.int32(array, index), generate


exchange: Any = intrinsic(_exchange)
load: Any = intrinsic(_load)
# Lets the thread run that has the lock, where threads are more than cores (POSIX).
_give_way: Any = types.ExternalFunction("sched_yield", types.int32())


# -- arcs --------------------------------------------------------------------------


@njit(cache=True, nogil=True, allocates=False)
def is_composed(graph: Composition) -> bool:
    """Return whether arcs are made when they are asked for."""
    return len(graph.keys) > 0


@njit(cache=True, nogil=True, allocates=False)
def make_arcs_within(
    graph: Composition, states: np.ndarray, costs: np.ndarray, cutoff: float
) -> None:
    """Make the arcs of the tokens of a frame that lack them and cost no more.

    Raises:
        MemoryError: the arrays are full.
    """
    is_made = graph.is_made
    for i in range(len(states)):
        if costs[i] <= cutoff and not load(is_made, states[i] >> 1):
            make_arcs(graph, np.int64(states[i]))


@njit(cache=True, nogil=True, allocates=False)
def make_arcs(graph: Composition, state: np.integer | int) -> None:
    """Make the arcs of a state of the composed graph, unless another thread has.

    Raises:
        MemoryError: the arrays are full.
    """
    pair = state >> 1
    while exchange(graph.lock, 0, 1):
        _give_way()
    is_full = False
    if not graph.is_made[pair]:
        degree = _most_arcs(graph.parts, *_parts(graph, pair))
        pairs, arcs = graph.counts[PAIRS], graph.counts[ARCS]
        is_full = pairs + degree > len(graph.keys) or arcs + degree > len(graph.arcs)
        if not is_full:
            _add_arcs(graph, pair)
            exchange(graph.is_made, pair, 1)
    exchange(graph.lock, 0, 0)
    if is_full:
        raise MemoryError("the space for composed arcs is full")


@njit(cache=True, nogil=True, allocates=False)
def _most_arcs(parts: Parts, part: int, history: int) -> int:
    """Return how many arcs a pair may have."""
    half, state = half_of(parts, part)
    degree = np.int64(half.states[state + 1].begin) - half.states[state].begin
    at = history // len(parts.phrases.refund)
    num_ways = 1
    while parts.lm.backoff_state[at] >= 0:
        at = parts.lm.backoff_state[at]
        num_ways += 1
    return (degree + len(parts.added.entry)) * num_ways


@njit(cache=True, nogil=True, allocates=False)
def num_histories(parts: Parts) -> int:
    """Return how many states there are of G and the phrases together."""
    return len(parts.any_word) * len(parts.phrases.refund)


@njit(cache=True, nogil=True, allocates=False)
def _parts(graph: Composition, pair: np.integer | int) -> tuple[int, int]:
    """Return the state of HCL and the history that a pair is made of."""
    size = num_histories(graph.parts)
    return graph.keys[pair] // size, graph.keys[pair] % size


@njit(cache=True, nogil=True, allocates=False)
def _add_arcs(graph: Composition, pair: np.integer | int) -> None:
    """Compose the arcs of a pair; the thread has the lock."""
    part, history = _parts(graph, pair)
    half, state = half_of(graph.parts, part)
    counts = graph.counts
    begin = counts[ARCS]
    middle = begin
    for a in range(half.states[state].begin, half.states[state + 1].begin):
        label = half.label[a]
        if label == ADDED:
            added = graph.parts.added
            if len(added.entry) > 0 and not added.is_class[0]:
                _add_arcs_backing_off(graph, pair, half, a, history)
            elif len(added.entry) > 0:
                _add_arcs_to_classes(graph, pair, half, a, history)
        elif label == BACK_OFF:
            _add_arcs_backing_off(graph, pair, half, a, history)
        else:
            _add_arc_of_word(graph, pair, half, a, history)
        if a < half.states[state].middle:
            middle = counts[ARCS]
    graph.states[2 * pair].begin = begin
    graph.states[2 * pair].middle = middle
    graph.states[2 * pair + 1].begin = counts[ARCS]


@njit(cache=True, nogil=True, allocates=False)
def _add_arc_of_word(
    graph: Composition, pair: np.integer | int, half: Transducer, a: int, history: int
) -> None:
    """Compose an arc with a word, or with nothing, if G has the word."""
    lm, phrases = graph.parts.lm, graph.parts.phrases
    label, word = half.label[a], half.word[a]
    num_nodes = len(phrases.refund)
    to, node, cost = history // num_nodes, history % num_nodes, 0.0
    if label != NOTHING:
        arc = find_arc(lm, to, label)
        if arc < 0:
            return
        to, cost = np.int64(lm.next_state[arc]), np.float64(lm.cost[arc])
    elif leads_nowhere(graph.parts, np.int64(half.arcs[a].code & STATE_BITS), to):
        return
    if len(phrases.label_of) > 0 and (word > 0 or label == graph.parts.end[0]):
        own = phrases.label_of[word] if word > 0 else _end_of_phrases(phrases)
        more, node = walk(phrases.lm, node, own)
        cost += more
    _add_arc(graph, pair, half, a, half.arcs[a].code, to * num_nodes + node, cost)


@njit(cache=True, nogil=True, allocates=False)
def _end_of_phrases(phrases: Phrases) -> int:
    """Return the label that ends a sentence in the model of the phrases."""
    return len(phrases.label) + 1


@njit(cache=True, nogil=True, allocates=False)
def _add_arcs_backing_off(
    graph: Composition, pair: np.integer | int, half: Transducer, a: int, history: int
) -> None:
    """Compose an arc where G may back off, as far as one likes.

    Args:
        graph: changed in place.
        pair: that it leaves.
        half: HCL, or what is added to it.
        a: its arc; one of ADDED leads to the added words, also without backing off.
        history: of the pair.
    """
    lm = graph.parts.lm
    num_nodes = len(graph.parts.phrases.refund)
    state, node, cost = history // num_nodes, history % num_nodes, 0.0
    code, may_stay = half.arcs[a].code, half.label[a] == ADDED
    if may_stay:
        code = np.uint32(graph.parts.added.entry[0, half.word[a]])  # no epsilons there
    while state >= 0:
        if may_stay:
            _add_arc(graph, pair, half, a, code, state * num_nodes + node, cost)
        may_stay = True
        cost += lm.backoff_cost[state]
        state = np.int64(lm.backoff_state[state])


@njit(cache=True, nogil=True, allocates=False)
def _add_arcs_to_classes(
    graph: Composition, pair: np.integer | int, half: Transducer, a: int, history: int
) -> None:
    """Compose an arc to each class of added words, by the best way through G."""
    lm, added = graph.parts.lm, graph.parts.added
    num_nodes = len(graph.parts.phrases.refund)
    for number in range(len(added.entry)):
        state, cost, to, least = history // num_nodes, 0.0, -1, np.inf
        while state >= 0:
            arc = find_arc(lm, state, added.label[number])
            if arc >= 0 and cost + lm.cost[arc] < least:
                to, least = np.int64(lm.next_state[arc]), cost + lm.cost[arc]
            cost += lm.backoff_cost[state]
            state = np.int64(lm.backoff_state[state])
        if to >= 0:
            code = np.uint32(added.entry[number, half.word[a]])
            to = to * num_nodes + history % num_nodes
            _add_arc(graph, pair, half, a, code, to, least)


@njit(cache=True, nogil=True, allocates=False)
def _add_arc(
    graph: Composition,
    pair: np.integer | int,
    half: Transducer,
    a: int,
    code: np.integer,
    to: int,
    cost: float,
) -> None:
    """Compose an arc of HCL with a way through G, unless it leads nowhere.

    Args:
        graph: changed in place.
        pair: that it leaves.
        half: HCL, or what is added to it.
        a: its arc.
        code: of the state of HCL that it leads to, see `SearchGraph.arcs`.
        to: history that it leads to.
        cost: of the way there.
    """
    target = _intern(graph, np.int64(code & STATE_BITS), np.int64(to))
    if target == _DEAD:
        return
    at = graph.counts[ARCS]
    push = graph.potential[target] - graph.potential[pair]
    graph.arcs[at].code = np.uint32(2 * target) | (code & HAS_EPSILON)
    graph.arcs[at].pdf = half.arcs[a].pdf
    graph.arcs[at].weight = half.arcs[a].weight + cost + push
    graph.origin[at] = at
    graph.transition_id[at] = half.transition_id[a]
    graph.word[at] = half.word[a] if half.label[a] != ADDED else 0
    graph.counts[ARCS] = at + 1


@njit(cache=True, nogil=True, allocates=False)
def _intern(graph: Composition, part: int, history: int) -> int:
    """Return the number of a pair, which it gets here if it has none; or _DEAD."""
    key = part * num_histories(graph.parts) + history
    mask = np.uint64(len(graph.slots) - 1)
    slot = (np.uint64(key) * _MIXER >> np.uint64(20)) & mask
    while graph.slots[slot]:
        pair = graph.slots[slot] - 1
        if graph.keys[pair] == key:
            return pair
        slot = (slot + np.uint64(1)) & mask
    potential = potential_of(graph.parts, part, history)
    if potential == np.inf:  # sooner found out again than looked up in a larger table
        return _DEAD
    pair = add_pair(graph, part, history, potential)
    graph.slots[slot] = pair + 1
    return pair


@njit(cache=True, nogil=True, allocates=False)
def add_pair(
    graph: Composition, part: int, history: int, potential: np.floating | float
) -> int:
    """Number a pair, without an entry in the table."""
    pair = graph.counts[PAIRS]
    graph.counts[PAIRS] = pair + 1
    graph.keys[pair] = part * num_histories(graph.parts) + history
    graph.potential[pair] = potential
    lm, phrases = graph.parts.lm, graph.parts.phrases
    state, node = history // len(phrases.refund), history % len(phrases.refund)
    end = find_arc(lm, state, graph.parts.end[0])
    final = np.inf
    if end >= 0:
        half, own = half_of(graph.parts, part)
        final = half.final[own] + lm.cost[end] - potential
        if len(phrases.label_of) > 0:
            final += walk(phrases.lm, node, _end_of_phrases(phrases))[0]
    graph.final[2 * pair] = final
    return pair


NO_COMPOSITION = make_composition(no_parts(), 0, 0)
