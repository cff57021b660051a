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
are few *ranges*; the end of an utterance (a final state); and backing off, which G may
do where HCL says so, at the boundaries of words as in HCLG.

With the least of these costs instead of their sum, a search with few tokens keeps worse
ones: Vosk's Korean model then wants 200,000 of them for what it finds with 15,000.

Words may be *added* (`latflow.decode.added_words`): HCL has arcs where one may begin,
and what follows them are arcs of another transducer, whose states are numbered behind
those of HCL. G has none of these words: behind any history it backs off to the empty
one, where each has a cost of its own, and which it leaves empty.

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

from latflow.jit import njit
from latflow.lang.lm_arrays import LmArrays, find_arc, first_from

ARC = np.dtype([("code", "u4"), ("pdf", "u4"), ("weight", "f4")])
Records = Any  # a structured array; in Numba its items have their fields as attributes
STATE = np.dtype([("begin", "u4"), ("middle", "u4")])
HAS_EPSILON = np.uint32(1 << 31)  # in the code of a state: it has epsilon arcs
STATE_BITS = np.uint32((1 << 31) - 1)  # the rest of the code: its number

# Labels of arcs of HCL that are no words; words are 0, 1, ...
NOTHING, BACK_OFF, ADDED = -1, -2, -3
ADDED_ALONE = -1  # the set of a state that leads to added words alone
# Entries of `Composition.counts`.
PAIRS, ARCS = range(2)
_DEAD = -1  # instead of a pair's number: it leads nowhere
_MIXER = np.uint64(0x9E37_79B9_7F4A_7C15)


class Transducer(NamedTuple):
    """HCL, or what is added to it, packed.

    Attributes:
        states: `STATE`[S + 1].
        arcs: `ARC`[A].
        label: int32[A], of each arc: a word's label, NOTHING, BACK_OFF or ADDED: where
            added words begin, behind the phone `word`.
        transition_id: int32[A].
        word: int32[A], the word that the label stands for.
        final: float32[S].
        set_of: int32[S], number of the set of labels that can come next, ADDED_ALONE
            for added words.
    """

    states: Records
    arcs: Records
    label: np.ndarray
    transition_id: np.ndarray
    word: np.ndarray
    final: np.ndarray
    set_of: np.ndarray


class AddedWords(NamedTuple):
    """Words that HCL and G lack.

    Attributes:
        transducer: its states are numbered behind those of HCL; arcs may lead to both.
        entry: int32[phones], the state that words begin in behind each phone; its arcs
            have the costs of the words.
        cost: float32[1], of all of them together, as `Parts.any_word`.
    """

    transducer: Transducer
    entry: np.ndarray
    cost: np.ndarray


class Parts(NamedTuple):
    """HCL and G, for kernels; they never change.

    Attributes:
        hcl: HCL.
        added: words added to it.
        set_begin: int64[sets + 1], where the ranges of each set begin.
        ranges: int32[ranges, 2], first and last label.
        can_back_off: bool[sets].
        can_add: bool[sets], whether ADDED comes next.
        lm: G; labels as those of HCL, and `end`.
        sums: float64[G's arcs], probabilities of the arcs of a state up to each one.
        any_word: float64[G's states], probability of all that may come next, backing
            off included.
        end: int64[1], the label that ends an utterance.
    """

    hcl: Transducer
    added: AddedWords
    set_begin: np.ndarray
    ranges: np.ndarray
    can_back_off: np.ndarray
    can_add: np.ndarray
    lm: LmArrays
    sums: np.ndarray
    any_word: np.ndarray
    end: np.ndarray


class Composition(NamedTuple):
    """A composed graph as far as it is made, for kernels.

    A pair has two records in `states`: the second one only ends its arcs, which need
    not lie before those of the next pair. A graph that isn't composed has arrays of no
    length.

    Attributes:
        parts: what it is composed of.
        slots: int32[a power of two], the table of pairs: number + 1, 0 where empty.
        keys: int64[most pairs], of each pair: state of HCL x G's states + state of G.
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


def read_only(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return views that can't be written to: kernels are compiled for these."""
    views = tuple(np.ascontiguousarray(array).view() for array in arrays)
    for view in views:
        view.setflags(write=False)
    return views


_EMPTY = {
    np.dtype(kind): read_only(np.zeros(0, kind))[0]
    for kind in (STATE, ARC, np.int32, np.int64, np.float32, np.float64, np.bool_)
}


def no_words() -> AddedWords:
    """Return no added words."""
    ints = _EMPTY[np.dtype(np.int32)]
    (cost,) = read_only(np.full(1, np.inf, np.float32))
    transducer = Transducer(
        *(_EMPTY[STATE], _EMPTY[ARC], ints, ints, ints),
        *(_EMPTY[np.dtype(np.float32)], ints),
    )
    return AddedWords(transducer, ints, cost)


def _no_composition() -> Composition:
    """Return what a graph has that isn't composed."""
    ints, longs = _EMPTY[np.dtype(np.int32)], _EMPTY[np.dtype(np.int64)]
    floats, doubles = _EMPTY[np.dtype(np.float32)], _EMPTY[np.dtype(np.float64)]
    flags = _EMPTY[np.dtype(np.bool_)]
    none = no_words()
    parts = Parts(
        *(none.transducer, none, longs),
        read_only(np.zeros((0, 2), np.int32))[0],
        *(flags, flags),
        LmArrays(longs, ints, floats, ints, ints, floats),
        *(doubles, doubles, longs),
    )
    return make_composition(parts, 0, 0)


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


@njit(cache=True, nogil=True)
def is_composed(graph: Composition) -> bool:
    """Tell whether arcs are made when they are asked for."""
    return len(graph.keys) > 0


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _most_arcs(parts: Parts, part: int, history: int) -> int:
    """Return how many arcs a pair may have."""
    half, state = _half(parts, part)
    degree = np.int64(half.states[state + 1].begin) - half.states[state].begin
    num_ways = 1
    while parts.lm.backoff_state[history] >= 0:
        history = parts.lm.backoff_state[history]
        num_ways += 1
    return degree * num_ways


@njit(cache=True, nogil=True)
def _half(parts: Parts, part: int) -> tuple[Transducer, int]:
    """Return the transducer that a state is of, and its number there."""
    num_states = len(parts.hcl.final)
    if part < num_states:
        return parts.hcl, part
    return parts.added.transducer, part - num_states


@njit(cache=True, nogil=True)
def _parts(graph: Composition, pair: np.integer | int) -> tuple[int, int]:
    """Return the states of HCL and of G that a pair is made of."""
    num_states = len(graph.parts.any_word)
    return graph.keys[pair] // num_states, graph.keys[pair] % num_states


@njit(cache=True, nogil=True)
def _add_arcs(graph: Composition, pair: np.integer | int) -> None:
    """Compose the arcs of a pair; the thread has the lock."""
    part, history = _parts(graph, pair)
    half, state = _half(graph.parts, part)
    counts, lm, added = graph.counts, graph.parts.lm, graph.parts.added
    begin = counts[ARCS]
    middle = begin
    for a in range(half.states[state].begin, half.states[state + 1].begin):
        label = half.label[a]
        if label == NOTHING:
            _add_arc(graph, pair, half, a, half.arcs[a].code, history, 0.0)
        elif label == BACK_OFF:  # as far as one likes
            to, cost = lm.backoff_state[history], lm.backoff_cost[history]
            while to >= 0:
                _add_arc(graph, pair, half, a, half.arcs[a].code, to, cost)
                cost += lm.backoff_cost[to]
                to = lm.backoff_state[to]
        elif label == ADDED:
            if len(added.entry) > 0:
                root, cost = _backed_off(lm, history)
                code = np.uint32(added.entry[half.word[a]])  # no epsilon arcs there
                _add_arc(graph, pair, half, a, code, root, cost)
        else:
            arc = find_arc(lm, history, label)
            if arc >= 0:
                code = half.arcs[a].code
                _add_arc(graph, pair, half, a, code, lm.next_state[arc], lm.cost[arc])
        if a < half.states[state].middle:
            middle = counts[ARCS]
    graph.states[2 * pair].begin = begin
    graph.states[2 * pair].middle = middle
    graph.states[2 * pair + 1].begin = counts[ARCS]


@njit(cache=True, nogil=True)
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
        to: state of G that it leads to.
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


@njit(cache=True, nogil=True)
def _intern(graph: Composition, part: int, history: int) -> int:
    """Return the number of a pair, which it gets here if it has none; or _DEAD."""
    key = part * len(graph.parts.any_word) + history
    mask = np.uint64(len(graph.slots) - 1)
    slot = (np.uint64(key) * _MIXER >> np.uint64(20)) & mask
    while graph.slots[slot]:
        pair = graph.slots[slot] - 1
        if graph.keys[pair] == key:
            return pair
        slot = (slot + np.uint64(1)) & mask
    potential = potential_of(graph, part, history)
    if potential == np.inf:  # sooner found out again than looked up in a larger table
        return _DEAD
    pair = add_pair(graph, part, history, potential)
    graph.slots[slot] = pair + 1
    return pair


@njit(cache=True, nogil=True)
def add_pair(
    graph: Composition, part: int, history: int, potential: np.floating | float
) -> int:
    """Number a pair, without an entry in the table."""
    pair = graph.counts[PAIRS]
    graph.counts[PAIRS] = pair + 1
    graph.keys[pair] = part * len(graph.parts.any_word) + history
    graph.potential[pair] = potential
    end = find_arc(graph.parts.lm, history, graph.parts.end[0])
    final = np.inf
    if end >= 0:
        half, state = _half(graph.parts, part)
        final = half.final[state] + graph.parts.lm.cost[end] - potential
    graph.final[2 * pair] = final
    return pair


@njit(cache=True, nogil=True)
def potential_of(graph: Composition, part: int, history: int) -> np.floating | float:
    """Return the cost of all that can come next together; inf if nothing can."""
    lm, added = graph.parts.lm, graph.parts.added
    half, state = _half(graph.parts, part)
    labels = half.set_of[state]
    if labels == ADDED_ALONE:
        return added.cost[0]
    least, total = np.inf, 0.0  # some cost; the sum of probabilities
    if graph.parts.can_add[labels] and len(added.entry) > 0:
        _, cost = _backed_off(lm, history)
        least = cost + added.cost[0]
        total = np.exp(-least)
    shorter = lm.backoff_state[history]
    if graph.parts.can_back_off[labels] and shorter >= 0:
        any_word = graph.parts.any_word[shorter]
        if any_word > 0.0:
            least = np.float64(lm.backoff_cost[history])
            total += np.exp(-least) * any_word
    sums = graph.parts.sums
    first, last = lm.arc_begin[history], lm.arc_begin[history + 1]
    at = first
    for r in range(graph.parts.set_begin[labels], graph.parts.set_begin[labels + 1]):
        if at == last:
            break
        begin = first_from(lm.label, at, last, graph.parts.ranges[r, 0])
        at = first_from(lm.label, begin, last, graph.parts.ranges[r, 1] + 1)
        if at > begin:
            least = np.float64(lm.cost[begin])
            total += sums[at - 1] - (sums[begin - 1] if begin > first else 0.0)
    # Where the sum is lost beside larger ones, or too small for a number, another
    # potential does as well.
    return np.float32(-np.log(total)) if total > 0.0 else np.float32(least)


@njit(cache=True, nogil=True)
def _backed_off(lm: LmArrays, history: int) -> tuple[int, float]:
    """Return the empty history, and the cost of backing off to it."""
    cost = 0.0
    while lm.backoff_state[history] >= 0:
        cost += lm.backoff_cost[history]
        history = lm.backoff_state[history]
    return history, cost


NO_COMPOSITION = _no_composition()
